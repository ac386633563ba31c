"""Examples in docs/: Python blocks run, CUDA blocks compile.

A block that begins with a comment ``dflash/PATH`` is a new file of the package. It is written to a temporary folder that
extends the package, and later blocks import it. A block after ``<!-- not run: REASON -->`` is only parsed or compiled.
"""

import importlib
import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import nvrtc
import pytest

import dflash
from dflash.__main__ import main
from dflash.decode.drafters.model_state import ModelDrafterState
from dflash.decode.registry import DRAFTERS
from dflash.decode.registry.recoveries import RECOVERIES
from dflash.kernels import sample
from dflash.kernels.formats import BLOCKS, BY_ID, FORMATS
from dflash.kernels.gpu import jit
from dflash.model.gguf.architectures import ARCHITECTURES
from dflash.model.network.blocks import FEED_FORWARDS

FOLDER = Path(__file__).parents[1] / "docs"
PAGES = sorted(FOLDER.glob("*.md"))
EXAMPLES = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]
BLOCK = re.compile(r"(<!-- not run: .+ -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"(?:#|//) (dflash/(\S+))\n")
EXTENDED = "dflash.kernels", "dflash.decode.drafters", "dflash.decode.recoveries", "dflash.generation.recovery"
TABLES = FORMATS, BLOCKS, BY_ID, ARCHITECTURES, FEED_FORWARDS
GPUS = 80, 90, 120


def blocks(page, kind):
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(code, bool(skipped)) for skipped, language, code in found if language == kind]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder whose files are modules of dflash until the end of a test."""
    for name in EXTENDED:
        module = importlib.import_module(name)
        inner = tmp_path.joinpath(*name.split(".")[1:])
        inner.mkdir(parents=True)
        monkeypatch.setattr(module, "__path__", [*module.__path__, str(inner)])
    for table, word in ((DRAFTERS, "drafters"), (RECOVERIES, "recover")):
        monkeypatch.setattr(table, "_entries", dict(table))
        sources = [importlib.import_module(name).import_all for name in EXTENDED if word in name]
        monkeypatch.setattr(table, "_sources", sources)
    before, entries = set(sys.modules), [(table, dict(table)) for table in TABLES]
    yield tmp_path
    for table, known in entries:
        table.clear()
        table.update(known)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(package, code):
    """Write a block that is a file; return its path, or None if it is not one."""
    found = FILE.match(code)
    if found is None:
        return None
    assert not (Path(dflash.__file__).parent / found[2]).exists(), f"{found[1]} is a file of the package"
    path = package / found[2]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")
    importlib.invalidate_caches()
    return path


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_its_python_runs(page, lm, package, monkeypatch, capsys):
    load = dflash.load  # a page about an option of `load`, or that writes a file, uses a model of its own

    def loaded(name, **given):
        return load(name, **given) if name != "demo" or given.keys() & {"prefix_cache", "kv"} else lm

    monkeypatch.setattr(dflash, "load", loaded)
    names = {"__name__": "__main__"}
    n_run, modules = 0, []
    for code, skipped in blocks(page, "python"):
        path = write(package, code)
        if path is not None:
            modules.append("dflash." + ".".join(path.relative_to(package).with_suffix("").parts))
        else:
            compiled = compile(code, str(page), "exec")
            if not skipped:
                exec(compiled, names)
                n_run += 1
    for module in modules:
        importlib.import_module(module.removesuffix(".__init__"))
    assert n_run or modules
    if "print(" in page.read_text(encoding="utf-8"):
        assert capsys.readouterr().out


@pytest.mark.parametrize("name", ["write-a-drafter", "write-a-recovery"])
def test_a_file_is_all_that_a_name_needs(name, lm, package, monkeypatch, capsys):
    """The command of a page knows a name from a file that nothing else imports."""
    page = FOLDER / f"{name}.md"
    (path,) = [path for path in (write(package, code) for code, _ in blocks(page, "python")) if path]
    (command,) = [code for code, _ in blocks(page, "sh")]
    monkeypatch.setattr("dflash.load", lambda *_, **__: nullcontext(lm))
    words = shlex.split(command.removeprefix("python -m dflash "))
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out
    assert main([*words[:3], *words[-2:]]) == 0
    plain = capsys.readouterr().out
    assert plain == out if path.parent.name == "drafters" else plain.startswith(out.rstrip("\n")) and plain != out


@pytest.fixture
def heads(lm, package):
    """The drafter of `write-a-neural-drafter.md` with random weights."""
    (path,) = [path for code, _ in blocks(FOLDER / "write-a-neural-drafter.md", "python") if (path := write(package, code))]
    rng, file = np.random.default_rng(0), path.with_suffix(".npz")
    weights, tokens = rng.normal(0, 0.1, (2, lm.model.config.width, 300)), rng.choice(lm.model.n_vocab, 300, replace=False)
    np.savez(file, weights=np.float32(weights), tokens=np.sort(tokens).astype(np.int32))
    return importlib.import_module("dflash.decode.drafters.heads").LinearHeads(str(file))


def test_the_neural_drafter_drafts_the_same_behind_a_saved_prefix(lm, heads):
    prompt, more = [9] * 300, {"strategy": heads, "max_tokens": 12}
    with dflash.load("demo", device="cpu", threads=1, context=1024, sequences=1, prefix_cache=True) as cached:
        cached.generate(prompt, **more)
        found = cached.generate([*prompt, 5, 7, 8], **more)
    want = lm.generate([*prompt, 5, 7, 8], **more)
    assert found.usage.cached_tokens > 200
    assert [step.draft for step in found.steps if step.tokens] == [step.draft for step in want.steps if step.tokens]


def test_the_neural_drafter_samples_as_verifiers_assume(lm, heads, monkeypatch):
    """Its scores are its logits, but for a constant, plus the noise of a seed that no other draft has."""
    seeds, drafts_of = [], ModelDrafterState.draft_of

    def checked(self, candidates, max_draft):
        seeds.append(self.params.seed)
        for t, (ids, scores) in enumerate(zip(candidates.ids, candidates.scores, strict=True)):
            assert len(ids) == (sample.POOL if self.session.sampler.draws else 1)
            noise = np.empty(len(ids), np.float32)
            sample.gumbel(self.params.seed, len(self.session.token_ids) + t, ids, out=noise)
            columns = np.searchsorted(self.draft_model.tokens, ids)
            assert np.ptp(scores - noise - (self.hidden @ self.draft_model.weights[t])[columns]) < 1e-3
        return drafts_of(self, candidates, max_draft)

    monkeypatch.setattr(ModelDrafterState, "draft_of", checked)
    for verifier in (dflash.RejectionSampling(), dflash.Coupled()):
        strategy = dflash.Strategy(heads, verifier=verifier)
        lm.generate("def gcd(a, b):", strategy=strategy, max_tokens=16, temperature=1.0, seed=3)
    assert len(set(seeds)) > len(seeds) // 3 > 3, "coupled drafts have the seed of the request"


@nvrtc.needed
@pytest.mark.parametrize("arch", GPUS)
def test_its_cuda_compiles(arch, package):
    (package / "kernels" / "gpu").symlink_to(Path(jit.__file__).parent)
    sources = [write(package, code) for page in PAGES for code, _ in blocks(page, "cuda")]
    kernels = [path for path in sources if path.suffix == ".cu"]
    assert kernels
    for path in kernels:
        assert nvrtc.compiled(path, arch, ROW_DIM=5120) == 0


@nvrtc.needed
@pytest.mark.parametrize("arch", GPUS)
def test_the_struct_of_a_format_compiles_into_the_kernels_that_pack_and_unpack(arch, package):
    formats, own = package / "kernels" / "formats", Path(dflash.__file__).parent / "kernels" / "formats"
    (package / "kernels" / "gpu").symlink_to(Path(jit.__file__).parent)
    ((code, _),) = blocks(FOLDER / "write-a-format.md", "cuda")
    write(package, code)
    for path in own.glob("*.cu*"):
        text = path.read_text(encoding="utf-8")
        formats.joinpath(path.name).write_text(text + '#include "log4.cuh"\n' if path.name == "quants.cuh" else text)
    assert nvrtc.compiled(formats / "repack.cu", arch, QUANT="LOG4") == 0
    assert nvrtc.compiled(formats / "unpack.cu", arch, QUANT="LOG4", PART=0) == 0


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_it_is_of_readable_length(page):
    assert 25 <= len(page.read_text(encoding="utf-8").splitlines()) <= 110


def test_the_site_shows_every_page():
    shown = re.findall(r"^ +- ([\w-]+\.md)$", (FOLDER.parent / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted([*(page.name for page in PAGES), "command-line.md"])


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([\w./-]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_named_files_are_there():
    """Paths in backticks that begin with a folder of the repository, or of the package, exist."""
    root, package = FOLDER.parent, Path(dflash.__file__).parent
    for page in PAGES:
        for name in re.findall(r"`((?:\w+/)+[\w.]*)`", page.read_text(encoding="utf-8")):
            folders = [folder for folder in (root, package) if (folder / name.split("/")[0]).is_dir()]
            written = any(FILE.match(code) and name in FILE.match(code)[1] for code, _ in blocks(page, "python"))
            if folders and not written:
                assert any((folder / name).exists() for folder in folders), f"{page.name}: {name}"
