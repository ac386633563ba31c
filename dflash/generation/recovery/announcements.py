"""Phrases with which an agent announces its next action, in five languages."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from unicodedata import normalize

ENGLISH = "I'll", "I will", "I am going to", "I'm going to", "I need to", "Let me", "Let's", "Let us"
GERMAN = (
    *("Ich werde", "werde ich", "Ich muss", "muss ich", "Lass mich", "Lassen Sie mich", "Lass uns", "Lassen Sie uns"),
    *("Ich lese", "lese ich", "Ich prüfe", "prüfe ich", "Ich suche", "suche ich", "Ich öffne", "öffne ich"),
    *("Ich schaue", "schaue ich", "Ich sehe mir", "sehe ich mir", "Schauen wir", "Sehen wir"),
    *("Ich rufe", "rufe ich", "Ich führe", "führe ich", "Ich starte", "starte ich", "Ich beginne", "beginne ich"),
)
FRENCH = (
    *("Je vais", "Je dois", "Laisse-moi", "Laissez-moi", "Permets-moi", "Permettez-moi", "Allons"),
    *("Je lis", "Je vérifie", "Je cherche", "Je regarde", "Je consulte", "Je lance", "Je commence"),
    *("J'ouvre", "J'examine", "J'exécute", "J'appelle"),
    *("Lisons", "Vérifions", "Cherchons", "Regardons", "Examinons", "Commençons", "Voyons"),
)
SPANISH = (
    *("Voy a", "Vamos a", "Tengo que", "Necesito", "Debo", "Procedo a", "Procederé"),
    *("Déjame", "Déjeme", "Permíteme", "Permítame"),
    *("Leeré", "Revisaré", "Verificaré", "Comprobaré", "Buscaré"),
    *("Examinaré", "Abriré", "Ejecutaré", "Empezaré", "Comenzaré"),
)
CHINESE = (
    *("让我", "我来", "我先", "我再", "我去", "我将", "我会", "我要", "我需要"),
    *("我现在", "现在我", "我们来", "我们先", "接下来"),
    *("讓我", "我來", "我將", "我會", "我現在", "現在我", "我們來", "我們先", "接下來"),
)

FINISHED = (
    *("done", "finished", "completed", "complete", "ready"),
    *("fertig", "erledigt", "abgeschlossen", "bereit"),
    *("terminé", "terminée", "terminés", "terminées", "fini", "achevé", "prêt", "prête"),
    *("hecho", "terminado", "completado", "finalizado", "listo", "lista"),
    *("已完成", "完成了", "完毕", "已经", "完畢", "已經"),
)
ASKED = (
    *("let me know", "need to know", "please tell", "please provide"),
    *("mich wissen", "muss ich wissen", "bitte"),
    *("moi savoir", "dites-moi", "dis-moi"),
    *("déjame saber", "déjeme saber", "avísame", "dime", "necesito saber", "necesito que"),
    *("告诉我", "请提供", "我需要知道", "告訴我", "請提供"),
)

_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff]")


@dataclass(frozen=True)
class Phrases:
    """Phrases that distinguish an announcement from other text that ends in a colon. Case is ignored.

    starts: an announcement contains one of these; default are those of all five languages.
    skip: text that contains one of these is no announcement: the task is done (`FINISHED`) or the user must act (`ASKED`).
    colons: characters that end an announcement.
    """

    starts: tuple[str, ...] = (*ENGLISH, *GERMAN, *FRENCH, *SPANISH, *CHINESE)
    skip: tuple[str, ...] = (*FINISHED, *ASKED)
    colons: tuple[str, ...] = (":", "\uff1a")

    def announce(self, text: str) -> bool:
        """Return True if the end of a text, without its colon, is an announcement."""
        plain = normalize("NFC", text).replace("\u2019", "'")
        return bool(self._starts.search(plain)) and not self._skip.search(plain)

    @cached_property
    def _starts(self) -> re.Pattern[str]:
        return _any_of(self.starts)

    @cached_property
    def _skip(self) -> re.Pattern[str]:
        return _any_of(self.skip)


PHRASES = Phrases()
"""Default phrases."""


def _any_of(phrases: Iterable[str]) -> re.Pattern[str]:
    """Compile a pattern that matches any phrase, as whole words in scripts with spaces; no phrases match nothing."""
    patterns = [re.escape(each) if _UNSPACED.search(each) else rf"(?<!\w){re.escape(each)}(?!\w)" for each in phrases]
    return re.compile("|".join(patterns) or "(?!)", re.IGNORECASE)
