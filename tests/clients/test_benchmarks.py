"""Programs that measure or evaluate a server finish on the demo. ``pytest -m clients`` runs these tests.

They are looked for in the folders of ``DFLASH_CLIENTS``, then in ``PATH``: ``pip install aiperf``, ``guidellm`` and
``'lm-eval[api]' transformers``, each in an environment of its own. They get the demo's tokenizer and data from local files.
"""

import json
import socket
import subprocess
from pathlib import Path

import pytest
from agent_server import serving
from client_recipes import SEARCH, found
from hang_guard import GUARD

from dflash.decode.engine import Engine
from dflash.serve.limits import Limits

pytestmark = pytest.mark.clients

QUIET = {"HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CI": "1", "TERM": "dumb"}
N_REQUESTS, N_PROMPT, N_OUTPUT = 4, 16, 8
QUESTIONS = [
    {"question": "def add(a, b):\n    return a", "choices": ["+ b", "elephants", "- 3 * c"], "answer": 0},
    {"question": "import os\nimport", "choices": ["sys", "banana"], "answer": 0},
    {"question": "The capital of Japan is", "choices": ["seven", "Tokyo"], "answer": 1},
]


class Counting(Engine):
    """Engine that remembers its sessions."""

    def __init__(self, model):
        super().__init__(model)
        self.sessions = []

    def add_all(self, sessions):
        self.sessions += sessions
        super().add_all(sessions)


@pytest.fixture
def tokenizer(lm, tmp_path):
    """Folder with the demo's tokenizer in the form of Transformers."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    lm.tokenizer._full.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "model_max_length": 32768}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def run(lm, pools, tmp_path):
    """Runs a program beside the server to its end: ``run(words)`` returns the sessions and what it printed."""

    def run(program, words):
        if found(program) is None:
            pytest.skip(f"{program} is not installed: neither in DFLASH_CLIENTS nor in PATH")
        engine, output = Counting(lm.model), tmp_path / "output"
        limits = Limits(lm.model.config.context)
        environment = {"PATH": SEARCH, "HOME": str(tmp_path), "LANG": "C.UTF-8", **QUIET}
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            serving(lm, engine, listener, limits) as url,
            output.open("wb") as file,
        ):
            command = [found(program), *(word.replace("{url}", url) for word in words)]
            done = subprocess.run(
                command,
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                timeout=GUARD,
                check=False,
            )
        text = output.read_text(encoding="utf-8", errors="replace")
        assert done.returncode == 0, text[-3000:]
        return engine.sessions, text

    return run


def read_json(folder, pattern):
    (path,) = Path(folder).rglob(pattern)
    return json.loads(path.read_text())


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_guidellm_gets_outputs_of_the_length_it_asks_for(route, run, tokenizer, tmp_path):
    """Each output has the length that was asked for, beyond end tokens."""
    sessions, _ = run(
        "guidellm",
        [
            "run",
            *("--backend", f"kind=openai_http,target={{url}},model=local,request_format={route}"),
            *("--profile", "kind=concurrent,streams=2"),
            *("--constraint", f"kind=max_requests,count={N_REQUESTS}"),
            *("--tokenizer", f"kind=hf_auto,model={tokenizer}"),
            *("--data", f"kind=synthetic_text,prompt_tokens={N_PROMPT},output_tokens={N_OUTPUT}"),
            *("--output", f"kind=json,path={tmp_path / 'report.json'}"),
            "--disable-console",
        ],
    )
    assert len(sessions) >= N_REQUESTS
    assert {session.n_tokens for session in sessions} == {N_OUTPUT}
    (benchmark,) = read_json(tmp_path, "report.json")["benchmarks"]
    done = benchmark["requests"]
    assert len(done["successful"]) == N_REQUESTS
    assert not done["errored"]
    assert {request["output_tokens"] for request in done["successful"]} == {N_OUTPUT}


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf_measures_all_its_requests(kind, run, tokenizer, tmp_path):
    sessions, _ = run(
        "aiperf",
        [
            "profile",
            *("--model", "local", "--url", "{url}", "--endpoint-type", kind, "--streaming"),
            *("--tokenizer", str(tokenizer), "--request-count", str(N_REQUESTS), "--concurrency", "2"),
            *("--synthetic-input-tokens-mean", str(N_PROMPT), "--output-tokens-mean", str(N_OUTPUT)),
            *("--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{N_OUTPUT}"),
            *("--artifact-dir", str(tmp_path / "artifacts"), "--ui", "none"),
        ],
    )
    assert len(sessions) == N_REQUESTS
    assert {session.n_tokens for session in sessions} == {N_OUTPUT}
    report = read_json(tmp_path / "artifacts", "profile_export_aiperf.json")
    assert report["request_count"]["avg"] == N_REQUESTS


def test_aiperf_replays_traces_of_agents(run, tokenizer, tmp_path):
    """The scenario of AgentX on local traces, in a run that is too short for a submission: every request is served."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for i in range(2):
        sizes = range(3, 7 + i)
        rows = [
            {"t": 1.0 * n, "type": "s", "model": "m", "in": 64 * n + 8, "out": N_OUTPUT, "hash_ids": list(range(n))}
            for n in sizes
        ]
        shape = {"id": f"trace {i}", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": rows}
        (folder / f"{i}.json").write_text(json.dumps(shape))
    sessions, _ = run(
        "aiperf",
        [
            *("profile", "--scenario", "inferencex-agentx-mvp", "--unsafe-override"),
            *("--model", "local", "--url", "{url}", "--endpoint-type", "chat", "--streaming"),
            *("--tokenizer", str(tokenizer), "--custom-dataset-type", "weka_trace", "--input-file", str(folder)),
            *("--concurrency", "2", "--benchmark-duration", "5", "--random-seed", "1", "--extra-inputs", "ignore_eos:true"),
            *("--artifact-dir", str(tmp_path / "artifacts"), "--ui", "none"),
        ],
    )
    report = read_json(tmp_path / "artifacts", "profile_export_aiperf.json")
    assert report["request_count"]["avg"] >= 1
    assert report["request_error_rate"]["avg"] == 0
    assert {session.finish_reason for session in sessions} <= {"length", "cancelled"}
    assert {session.n_tokens for session in sessions if session.finish_reason == "length"} == {1, N_OUTPUT}  # 1: its warm-up


def test_lm_eval_gets_the_log_likelihoods_of_the_library(run, lm, tokenizer, tmp_path):
    """Log-likelihoods are those of the library; texts are generated up to a line break."""
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(documents)}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
    }
    tasks = {
        "choices": {
            "output_type": "multiple_choice",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{answer}}",
            "metric_list": [{"metric": "acc"}],
        },
        "words": {
            "output_type": "generate_until",
            "doc_to_target": "{{choices[answer]}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "temperature": 0},
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    for name, task in tasks.items():  # JSON is YAML
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"task": name, **shared, **task}))
    arguments = f"model=local,base_url={{url}}/v1/completions,num_concurrent=2,max_retries=1,tokenizer={tokenizer}"
    run(
        "lm_eval",
        [
            *("run", "--model", "local-completions", "--tasks", ",".join(tasks), "--include_path", str(tmp_path)),
            *("--model_args", f"{arguments},tokenizer_backend=huggingface"),
            *("--output_path", str(tmp_path / "results"), "--log_samples"),
        ],
    )
    want = [[log_likelihood(lm, row["question"], " " + choice) for choice in row["choices"]] for row in QUESTIONS]
    best = [max(range(len(row)), key=row.__getitem__) for row in want]
    results = read_json(tmp_path / "results", "results_*.json")["results"]
    share = sum(index == row["answer"] for index, row in zip(best, QUESTIONS, strict=True)) / len(QUESTIONS)
    assert results["choices"]["acc,none"] == pytest.approx(share)
    (path,) = (tmp_path / "results").rglob("samples_choices_*.jsonl")
    samples = sorted(map(json.loads, path.read_text().splitlines()), key=lambda sample: sample["doc_id"])
    found = [[float(values[0]) for values in sample["filtered_resps"]] for sample in samples]
    for one, other in zip(found, want, strict=True):
        assert one == pytest.approx(other, abs=1e-3)


def log_likelihood(lm, question, choice):
    """Log-probability of the tokens after the question."""
    n = len(lm.tokenizer.encode(question))
    return float(lm.log_probabilities(question + choice)[n - 1 :].sum())
