from functools import partial
from io import StringIO
from pathlib import Path

import huggingface_hub.constants
import huggingface_hub.file_download
import pytest
from hub_stand_in import serve_hub
from python_run import run_python
from tqdm import tqdm

from dflash.cli.serve import default_name
from dflash.errors import DownloadError, NotFound
from dflash.model.gguf.choose import choose_files
from dflash.model.loading.hub import resolve, stamp

REPO = "org/Model-GGUF"
PARTS = [f"BF16/Model-BF16-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
FILES = {
    ".gitattributes": b"*.gguf filter=lfs",
    "README.md": b"# Model",
    "mmproj-Q4_K_M.gguf": b"a vision tower",
    "imatrix_Q4_K_M.gguf": b"importance",
    "mtp-Model-Q4_K_M.gguf": b"an MTP block",
    "Model-Q8_0.gguf": b"8 bits",
    "Model-UD-Q4_K_XL.gguf": b"more bits",
    "Model-UD-Q4_K_M.gguf": b"other bits",
    "Model-Q4_K_M.gguf": bytes(range(256)) * 256,
    "Model-IQ4_XS.gguf": b"fewer bits",
} | {part: part.encode() for part in PARTS}


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(huggingface_hub.file_download.time, "sleep", lambda _: None)
    with serve_hub() as hub:
        hub.repos[REPO] = dict(FILES)
        yield hub


@pytest.fixture
def find(hub, tmp_path):
    return partial(resolve, endpoint=hub.url, cache_dir=tmp_path)


class TestNames:
    def test_a_path_is_itself(self, tmp_path, monkeypatch):
        path = tmp_path / "x.gguf"
        path.touch()
        assert resolve(path) == resolve(str(path)) == path
        monkeypatch.setenv("HOME", str(tmp_path))
        assert resolve("~/x.gguf") == path

    def test_packaged_models_are_found(self):
        assert resolve("demo").name == "demo-Q4_K_M.gguf"
        assert resolve("demo-draft").is_file()

    @pytest.mark.parametrize("name", ["nothing.gguf", "models/nothing.gguf", "a/b/c", "nothing"])
    def test_no_such_path(self, name):
        with pytest.raises(NotFound, match=f"{name}: there is no such file; a name is a path, 'demo' or 'hf:"):
            resolve(name)

    def test_a_name_that_is_nearly_right(self, tmp_path):
        (tmp_path / "Model-Q4_K_M.gguf").touch()
        with pytest.raises(NotFound, match=r"did you mean Model-Q4_K_M\.gguf\?"):
            resolve(tmp_path / "model-q4_k_m.guf")
        with pytest.raises(NotFound, match=r"did you mean demo\?"):
            resolve("dmo")

    def test_a_repository_needs_no_prefix(self, find, hub, tmp_path, monkeypatch):
        """A file or folder of its name comes first, and a path object is always a path."""
        assert find(REPO).name == find(f"{REPO}:q4_k_m").name == "Model-Q4_K_M.gguf"
        assert find(f"{REPO}@main:Q8_0").name == "Model-Q8_0.gguf"
        assert stamp(REPO) is None
        assert default_name(REPO) == REPO
        monkeypatch.chdir(tmp_path)
        local = Path(REPO)
        with pytest.raises(NotFound, match="there is no such file"):
            resolve(local)
        local.mkdir(parents=True)
        n = len(hub.requests)
        assert find(REPO) == local
        assert len(hub.requests) == n

    def test_neither_a_repository_nor_a_file(self, find):
        with pytest.raises(NotFound, match=r"org/none: there is no such repository.*; there is no file or folder"):
            find("org/none")

    def test_cached_files_are_found_without_a_network(self, tmp_path):
        """The client reads the variable when it is imported."""
        code = f"from dflash.model.loading.hub import resolve; resolve('org/none', cache_dir={str(tmp_path)!r})"
        offline = run_python("-c", code, env={"HF_HUB_OFFLINE": "1"}, check=False)
        assert "DownloadError: org/none: is not in the cache, and HF_HUB_OFFLINE keeps" in offline.stderr.splitlines()[-1]

    def test_importing_does_not_import_the_client(self):
        code = "import sys, dflash.model.loading.hub; sys.exit('huggingface_hub' in sys.modules)"
        run_python("-c", code)


class TestDownload:
    def test_q4_k_m_by_default(self, find, hub):
        path = find(f"hf:{REPO}")
        assert (path.name, path.read_bytes()) == ("Model-Q4_K_M.gguf", FILES["Model-Q4_K_M.gguf"])
        assert hub.downloads() == [("Model-Q4_K_M.gguf", None)]

    @pytest.mark.parametrize("quant", ["Q8_0", "q8_0", "Model-Q8_0.gguf"])
    def test_a_file_is_chosen_by_its_quantization(self, quant, find):
        assert find(f"hf:{REPO}:{quant}").read_bytes() == b"8 bits"

    def test_all_parts_of_a_split_model(self, find, hub):
        path = find(f"hf:{REPO}:bf16")
        assert path.as_posix().endswith(PARTS[0])
        assert [(path.parent.parent / part).read_bytes() for part in PARTS] == [FILES[part] for part in PARTS]
        assert len(hub.downloads()) == 3

    def test_what_is_in_the_cache_is_not_downloaded_again(self, find, hub):
        first = find(f"hf:{REPO}")
        assert find(f"hf:{REPO}") == first
        assert len(hub.downloads()) == 1

    def test_a_new_version_is(self, find, hub):
        first = find(f"hf:{REPO}:q8_0")
        hub.repos[REPO]["Model-Q8_0.gguf"] = b"8 better bits"
        assert find(f"hf:{REPO}:q8_0").read_bytes() == b"8 better bits"
        assert first.read_bytes() == b"8 bits"

    def test_a_broken_download_is_resumed(self, find, hub, monkeypatch):
        monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
        hub.cut_after = 30_000
        try:
            path = find(f"hf:{REPO}")
        except DownloadError:
            path = find(f"hf:{REPO}")  # clients before 2.0 resume in the next call
        assert path.read_bytes() == FILES["Model-Q4_K_M.gguf"]
        assert hub.downloads() == [("Model-Q4_K_M.gguf", None), ("Model-Q4_K_M.gguf", "bytes=30000-")]

    def test_a_failed_download_leaves_nothing_that_looks_whole(self, find, hub, tmp_path):
        hub.cut_after, hub.status_after_cut = 30_000, 503
        with pytest.raises(DownloadError, match=f"{REPO}: the hub could not be read"):
            find(f"hf:{REPO}")
        assert not list(tmp_path.rglob("*.gguf"))
        hub.status = None
        assert find(f"hf:{REPO}").read_bytes() == FILES["Model-Q4_K_M.gguf"]

    def test_a_draft_as_it_is_published(self, find, hub):
        """A folder of safetensors files is chosen if folders are allowed and there is no GGUF file."""
        parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
        files = {name: name.encode() for name in ("config.json", *parts, "onnx/model.safetensors", "README.md")}
        hub.repos["org/draft"] = files
        with pytest.raises(NotFound, match="org/draft: holds no GGUF model"):
            find("hf:org/draft")
        path = find("hf:org/draft", folders=True)
        assert path.name == "config.json"
        assert sorted(file.name for file in path.parent.iterdir()) == ["config.json", *parts]
        hub.status = 503
        assert find("hf:org/draft", folders=True) == path
        hub.status = None
        with pytest.raises(NotFound, match="holds no GGUF model"):
            find("hf:org/draft:q8_0", folders=True)
        assert find(f"hf:{REPO}", folders=True).name == "Model-Q4_K_M.gguf"

    def test_downloads_show_progress(self, find):
        made = []

        class Bar(tqdm):
            def __init__(self, *args, **settings):
                super().__init__(*args, **settings | {"file": StringIO()})
                made.append(self)

        find(f"hf:{REPO}", progress=Bar)
        assert any(bar.n for bar in made)


class TestRevisions:
    @pytest.fixture
    def tagged(self, hub):
        """A hub with an older version of the model under a tag, and another on a branch."""
        for revision in ("v1.0", "refs/pr/1"):
            hub.revisions[REPO, revision] = {"Model-Q8_0.gguf": f"8 bits of {revision}".encode()}
        return hub

    @pytest.mark.parametrize("revision", ["v1.0", "refs/pr/1"])
    @pytest.mark.parametrize("quant", ["", ":q8_0"])
    def test_a_branch_or_tag(self, revision, quant, find, tagged):
        assert find(f"hf:{REPO}@{revision}{quant}").read_bytes() == f"8 bits of {revision}".encode()

    def test_a_commit_stays(self, find, tagged):
        commit = tagged.commit(REPO, "v1.0")
        tagged.repos[REPO]["Model-Q8_0.gguf"] = b"8 better bits"
        assert find(f"hf:{REPO}@{commit}:q8_0").read_bytes() == b"8 bits of v1.0"

    def test_main_can_be_named(self, find):
        assert find(f"hf:{REPO}@main:q8_0") == find(f"hf:{REPO}:q8_0")

    def test_revisions_have_places_of_their_own_in_the_cache(self, find, tagged, tmp_path):
        names = {"": b"8 bits", "@v1.0": b"8 bits of v1.0", "@refs/pr/1": b"8 bits of refs/pr/1"}
        paths = {name: find(f"hf:{REPO}{name}:q8_0") for name in names}
        assert len(set(paths.values())) == len(names)
        commit = tagged.commit(REPO, "v1.0")
        tagged.status = 503
        for name, content in names.items():
            assert find(f"hf:{REPO}{name}:q8_0") == paths[name]
            assert paths[name].read_bytes() == content
        assert find(f"hf:{REPO}@{commit}:q8_0") == paths["@v1.0"]
        with pytest.raises(DownloadError, match="could not be read"):
            find(f"hf:{REPO}@v2.0:q8_0")

    def test_a_pinned_model_alone_is_not_taken_for_main(self, find, tagged):
        find(f"hf:{REPO}@v1.0:q8_0")
        tagged.status = 503
        with pytest.raises(DownloadError, match="could not be read"):
            find(f"hf:{REPO}:q8_0")

    @pytest.mark.parametrize("revision", ["v2.0", "0" * 40])
    def test_no_such_revision(self, revision, find):
        with pytest.raises(NotFound, match=f"{REPO}: there is no branch, tag or commit '{revision}'"):
            find(f"hf:{REPO}@{revision}:q8_0")

    @pytest.mark.parametrize(
        "revision",
        ["", "../x", "a..b", "a b", "-x", "/x", "x/", "a//b", ".x", "a/.x", "x.", "x.lock", "x@y", "x@{1}", "a~1", "a?b",
         "x\n", "\x1b[31m", "a%2fb", "x" * 201],
    )  # fmt: skip
    def test_no_name_of_a_revision(self, revision, find, hub):
        with pytest.raises(NotFound, match="can't be a revision, wanted a branch, tag or commit") as raised:
            find(f"hf:{REPO}@{revision}:q8_0")
        assert str(raised.value).isprintable()
        assert hub.requests == []

    @pytest.mark.parametrize("revision", ["x" * 200, "a", "v1.0-rc_2+b", "feature/a.b/c"])
    def test_unusual_names_are_asked_for(self, revision, find, hub):
        with pytest.raises(NotFound, match="there is no branch"):
            find(f"hf:{REPO}@{revision}")
        assert hub.requests


class TestErrors:
    def test_no_such_quant_says_what_there_is(self, find):
        with pytest.raises(NotFound, match=f"{REPO}: has no Q3_K_S, there is BF16, IQ4_XS, Q4_K_M, Q8_0, UD-Q4_K_M, UD-Q4"):
            find(f"hf:{REPO}:Q3_K_S")

    def test_no_such_repository(self, find):
        with pytest.raises(NotFound, match="org/other: there is no such repository, or it is private"):
            find("hf:org/other")

    @pytest.mark.parametrize("repo", ["", "a/b/c", "org/mo del", "org/../x"])
    def test_no_name_of_a_repository(self, repo, find):
        with pytest.raises(NotFound, match=r"no repository|no such repository"):
            find(f"hf:{repo}")

    def test_no_model_in_it(self, find, hub):
        hub.repos["org/empty"] = {"mmproj-F16.gguf": b"", "README.md": b""}
        with pytest.raises(NotFound, match="org/empty: holds no GGUF model"):
            find("hf:org/empty")

    def test_a_gated_repository_says_to_accept_its_terms(self, find, hub):
        hub.gated.add(REPO)
        with pytest.raises(DownloadError, match=f"{REPO}: accept its terms on the hub and log in"):
            find(f"hf:{REPO}")

    @pytest.mark.parametrize("status", [500, 404])
    def test_the_hub_is_ill(self, status, find, hub):
        hub.status = status
        with pytest.raises((DownloadError, NotFound), match=REPO):
            find(f"hf:{REPO}")

    def test_no_network_is_an_error_that_names_the_repository(self, tmp_path):
        with pytest.raises(DownloadError, match=f"{REPO}: the hub could not be read"):
            resolve(f"hf:{REPO}", endpoint="http://127.0.0.1:9", cache_dir=tmp_path)


class TestOffline:
    @pytest.mark.parametrize("quant", ["", ":q4_k_m"])
    def test_the_cache_will_do(self, quant, find, tmp_path):
        path = find(f"hf:{REPO}")
        assert resolve(f"hf:{REPO}{quant}", endpoint="http://127.0.0.1:9", cache_dir=tmp_path) == path

    def test_a_split_model(self, find, tmp_path):
        path = find(f"hf:{REPO}:bf16")
        assert resolve(f"hf:{REPO}:bf16", endpoint="http://127.0.0.1:9", cache_dir=tmp_path) == path

    def test_what_is_not_in_the_cache(self, find, tmp_path):
        find(f"hf:{REPO}")
        with pytest.raises(DownloadError, match="could not be read"):
            resolve(f"hf:{REPO}:q8_0", endpoint="http://127.0.0.1:9", cache_dir=tmp_path)

    def test_an_ill_hub(self, find, hub):
        path = find(f"hf:{REPO}")
        hub.status = 503
        assert find(f"hf:{REPO}") == path

    def test_half_a_split_model_will_not(self, find, hub, tmp_path):
        find(f"hf:{REPO}:bf16")
        next(tmp_path.rglob(PARTS[1])).unlink()
        hub.status = 503
        with pytest.raises(DownloadError):
            find(f"hf:{REPO}:bf16")


class TestChoice:
    @pytest.mark.parametrize(
        ("files", "quant", "want"),
        [
            (["a-Q8_0.gguf", "a-Q4_K_M.gguf"], None, "a-Q4_K_M.gguf"),
            (["a-Q8_0.gguf", "a-UD-Q4_K_XL.gguf"], None, "a-UD-Q4_K_XL.gguf"),
            (["b.gguf", "a.gguf", "README.md"], None, "a.gguf"),
            (["model.gguf", "mmproj-model-f16.gguf"], None, "model.gguf"),
            (["a.Q4_K_M.gguf"], "q4_k_m", "a.Q4_K_M.gguf"),
            (["a-IQ4_XS.gguf", "a-Q4_0.gguf"], "iq4_xs", "a-IQ4_XS.gguf"),
            (["a-UD-Q4_K_M.gguf", "a-Q4_K_M.gguf"], "Q4_K_M", "a-Q4_K_M.gguf"),
            (["a-UD-Q4_K_M.gguf", "a-Q4_K_M.gguf"], "ud-q4_k_m", "a-UD-Q4_K_M.gguf"),
            (["a-MTP-Q4_K_M.gguf", "mtp-a-Q4_K_M.gguf"], "Q4_K_M", "a-MTP-Q4_K_M.gguf"),
            (["a-Q4_K_M.gguf", "mtp-a-Q4_K_M.gguf"], "mtp-a-q4_k_m.gguf", "mtp-a-Q4_K_M.gguf"),
            (["q8_0/a.gguf", "q4_0/a.gguf"], "Q4_0", "q4_0/a.gguf"),
            (["Qwen3.5-4B-Q8_0.gguf", "dflash-Q4_K_M.gguf"], None, "Qwen3.5-4B-Q8_0.gguf"),
            (["Model-4B-Q4_K_M.gguf", "M-DFlash-Q4_K_M.gguf"], "q4_k_m", "Model-4B-Q4_K_M.gguf"),
            (["Model-4B-Q4_K_M.gguf", "eagle3-Q4_K_M.gguf", "x.dspark.Q4_K_M.gguf"], None, "Model-4B-Q4_K_M.gguf"),
            (["Model-it-Q4_K_M.gguf", "M-it-assistant-Q4_K_M.gguf"], None, "Model-it-Q4_K_M.gguf"),
            (["Model-Q8_0.gguf", "draft/M-Q4_K_M.gguf"], None, "Model-Q8_0.gguf"),
            (["M-draft-Q4_K_M.gguf"], None, "M-draft-Q4_K_M.gguf"),
            (["a-Q8_0.gguf", "dflash-Q4_K_M.gguf"], "dflash-q4_k_m.gguf", "dflash-Q4_K_M.gguf"),
            (
                ["Drafty-DFlashback-Q4_K_M.gguf", "Drafty-Q4_K_M-longer-name-Q8_0.gguf"],
                None,
                "Drafty-DFlashback-Q4_K_M.gguf",
            ),
            (["[a]-Q4_0.gguf"], None, "[a]-Q4_0.gguf"),
        ],
    )
    def test_one_file_of_a_repository_is_chosen(self, files, quant, want):
        assert choose_files("org/x", files, quant) == [want]

    def test_a_draft_is_chosen_where_one_is_wanted(self):
        files = ["Model-Q4_K_M.gguf", "mtp-Model-Q4_K_M.gguf", "Model-4B-DFlash-2-Q8_0.gguf"]
        assert choose_files("org/x", files, None, folders=True) == ["Model-4B-DFlash-2-Q8_0.gguf"]
        assert choose_files("org/x", files[:2], None, folders=True) == ["Model-Q4_K_M.gguf"]

    def test_a_quant_is_no_pattern_and_no_part_of_another(self):
        for quant in ("Q4.K.M", "4_K_M", ".*", "Q4_K"):
            with pytest.raises(NotFound, match="there is IQ4_K_M, Q4_K_M"):
                choose_files("org/x", ["a-Q4_K_M.gguf", "a-IQ4_K_M.gguf"], quant)

    def test_missing_parts_of_a_split_file_are_named(self):
        with pytest.raises(NotFound, match=r"org/x: 2 of 3 parts are missing, the first is BF16/Model-BF16-00001-of-00003"):
            choose_files("org/x", PARTS[1:2], "bf16")


def test_a_stamp_changes_with_the_files(tmp_path):
    assert stamp("hf:org/repo") is None
    assert stamp(str(tmp_path / "nowhere.gguf")) == ()
    assert len(stamp("demo")) == 1
    single, folder = tmp_path / "model.gguf", tmp_path / "draft"
    folder.mkdir()
    parts = [tmp_path / f"split-{i:05d}-of-00002.gguf" for i in (1, 2)]
    config, weights = folder / "config.json", folder / "model.safetensors"
    for name, files in ((single, [single]), (parts[0], parts), (folder, [config, weights]), (config, [config, weights])):
        before = stamp(str(name))
        for n, file in enumerate(files):
            file.write_bytes(bytes(len(before or ()) + n + 1))
            after = stamp(str(name))
            assert after != before
            before = after
        assert len(before) == len(files)
        assert stamp(str(name)) == before
    (folder / "README.md").write_text("not a part of it")
    assert stamp(str(folder)) == stamp(str(config))
