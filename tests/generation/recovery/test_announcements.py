"""Announcements in several languages, and texts that only end like one."""

from dataclasses import replace

import pytest

from dflash.decode.recoveries.base import Inject
from dflash.decode.session import Session
from dflash.decode.verify import Accepted
from dflash.generation.recovery.announcements import PHRASES, Phrases
from dflash.generation.recovery.names import Language, recoveries
from dflash.generation.recovery.special_tokens import special_tokens_of
from dflash.generation.recovery.tool_stall import Stall

READ = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object", "properties": {}}}}

ANNOUNCED = [
    "I'll read the file first:",
    "The tests fail. Let me look at src/main.py:\n\n",
    "Now I\u2019ll run them again:\n",
    "**Let's check the log:**",
    "Ich lese zuerst die Datei src/main.py:",
    "Gut. Jetzt werde ich die Tests ausführen:",
    "Als Nächstes schaue ich mir die Fehlermeldung an:\n",
    "Lass mich zuerst im Verzeichnis nachsehen:",
    "Je vais d'abord lire le fichier\u00a0:",
    "Vérifions la configuration :\n\n",
    "Laissez-moi examiner le journal\u202f:",
    "J\u2019exécute maintenant les tests :",
    "Voy a leer el archivo primero:",
    "Déjame revisar la configuración:",
    "De\u0301jame revisar la configuración:",
    "A continuación ejecutaré las pruebas:\n",
    "让我先看一下这个文件：",
    "测试失败了，接下来检查日志文件：\n\n",
    "好的，我来读取配置文件:",
    "我现在运行测试：",
    "讓我先讀取設定檔：",
]
LEFT_ALONE = [
    "The capital of Japan is Tokyo.",
    "I'll be glad to help.",
    "These are the files:",
    "The result is as follows:\n",
    "It will let meteorites pass:",
    "I'll stop here, since everything is done:",
    "Let me know which of these you want:",
    "To go on I need to know the path:",
    "Hier sind die Dateien:",
    "Das Ergebnis lautet wie folgt:",
    "Ich werde nichts weiter tun, alles ist erledigt:",
    "Lass mich wissen, welche Datei gemeint ist:",
    "Pflicht ist diese Zeile:",
    "Voici les fichiers :",
    "Le résultat est le suivant :",
    "Je vais m'arrêter, le travail est terminé :",
    "Dites-moi ce que je dois faire :",
    "Estos son los archivos:",
    "El resultado es el siguiente:",
    "Necesito saber la ruta del archivo:",
    "Déjame saber cuál prefieres:",
    "文件如下：",
    "结果是：",
    "我会停在这里，任务已完成：",
    "请告诉我要读取哪个文件：",
]


def see(lm, stall, said):
    """Return the verdict of a recovery at the end of a text."""
    tokenizer = lm.tokenizer
    session = Session(lm.encode([{"role": "user", "content": "Go on."}], enable_thinking=False), eos=tokenizer.eos_ids)
    session.special_tokens, session.detokenize = special_tokens_of(tokenizer), tokenizer.decode
    for token in tokenizer.encode(said):
        session.history.push(token)
    watch = stall.start(session)
    session.recovery_states = [watch]
    return (
        "inject"
        if isinstance(watch.check_step(session, Accepted([min(session.eos)], [0], 0, [], "stop")), Inject)
        else "pass"
    )


@pytest.fixture
def stall_of(lm):
    """Build a recovery by name with a longer window: the demo has several tokens per Chinese character."""
    return lambda wanted, tail=72: replace(recoveries(wanted, Language(lm.tokenizer, lm.template, [READ]))[0], tail=tail)


@pytest.mark.parametrize("said", ANNOUNCED)
def test_an_announcement_without_a_call_is_found(lm, stall_of, said):
    assert see(lm, stall_of("stall"), said) == "inject"
    assert see(lm, stall_of("stall"), f"A line before it. {said}") == "inject"
    assert see(lm, stall_of("stall"), said.rstrip("*\n").rstrip(":\uff1a") + ".") == "pass"


@pytest.mark.parametrize("said", LEFT_ALONE)
def test_an_ordinary_answer(lm, stall_of, said):
    assert see(lm, stall_of("stall"), said) == "pass"


def test_a_phrase_long_before_the_end_does_not_count(lm, stall_of):
    for said in (f"让我想想。{'文件的内容是这样的。' * 2}如下：", "Let me think. " + "Here is one. " * 9 + "The files:"):
        assert see(lm, stall_of("stall", 24), said) == "pass"
        assert see(lm, stall_of("stall", 99), said) == "inject"


def test_phrases_of_your_own(lm, stall_of):
    own = Stall(phrases=Phrases(starts=("Ik ga",), skip=("klaar",), colons=(":", "\u2026")))
    assert see(lm, stall_of([own]), "Ik ga het bestand lezen:") == "inject"
    assert see(lm, stall_of([own]), "Ik ga het bestand lezen\u2026") == "inject"
    assert see(lm, stall_of([own]), "Ik ga stoppen, alles is klaar:") == "pass"
    assert see(lm, stall_of([own]), "Let me read the file:") == "pass"
    assert see(lm, stall_of("stall"), "Ik ga het bestand lezen:") == "pass"
    assert not Phrases(starts=()).announce("Let me read the file:")
    assert Phrases(skip=()).announce("I will do it, then all is done:")


def test_every_phrase_is_found_where_nothing_speaks_against_it():
    assert [start for start in PHRASES.starts if not PHRASES.announce(f"({start}) a b")] == []
    assert [start for start in PHRASES.starts if not PHRASES.announce(f"{start.upper()} a b")] == []
