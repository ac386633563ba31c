"""The list of strategies and recoveries that requests may choose."""

from dflash.decode.recoveries.loop_guard import LoopGuard
from dflash.serve.page.catalog import catalog_of
from dflash.serve.strategy_choice import Defaults, named


def ids(entries):
    return [entry["id"] for entry in entries]


def test_every_strategy_that_the_server_allows_is_listed():
    assert {"plain", "mtp", "lookup", "first"} <= set(ids(catalog_of(Defaults())["strategies"]))
    assert ids(catalog_of(Defaults(allowed=("lookup", "plain")))["strategies"]) == ["plain", "lookup"]
    assert catalog_of(Defaults(allowed=()))["strategies"] == []


def test_a_strategy_that_needs_a_file_is_listed_where_the_server_has_one():
    assert "draft-model" not in ids(catalog_of(Defaults())["strategies"])
    assert "draft-model" in ids(catalog_of(Defaults(draft="small.gguf"))["strategies"])


def test_a_model_without_drafts_offers_none():
    offered = ids(catalog_of(Defaults(without_files={"dflash": "no draft", "mtp": "no layer"}))["strategies"])
    assert {"plain", "lookup", "adaptive"} <= set(offered)
    assert not {"dflash", "mtp"} & set(offered)


def test_listed_strategies_can_be_named():
    for entry in catalog_of(Defaults())["strategies"]:
        assert named(f"{entry['id']}(plain, lookup)" if entry["needs_parts"] else entry["id"], None)


def test_an_entry_says_how_it_is_written_and_what_it_does():
    found = {entry["id"]: entry for entry in catalog_of(Defaults())["strategies"]}
    assert found["mtp"]["forms"] == ["mtp[:DEPTH]"]
    assert found["first"]["needs_parts"]
    assert not found["adaptive"]["needs_parts"]
    for entry in (*found.values(), *catalog_of(Defaults())["recoveries"]):
        sentence = entry["description"]
        assert 10 < len(sentence) < 200
        assert sentence.endswith(".")
        assert "\n" not in sentence
        assert ". " not in sentence


def test_no_two_strategies_have_one_description():
    for entries in (catalog_of(Defaults())["strategies"], catalog_of(Defaults())["recoveries"]):
        descriptions = [entry["description"] for entry in entries]
        assert len(set(descriptions)) == len(descriptions)


def test_recoveries_name_their_values():
    found = {entry["id"]: entry for entry in catalog_of(Defaults())["recoveries"]}
    assert found["min"]["value"] == "N"
    assert found["empty"]["value"] is None
    assert LoopGuard.__doc__.replace("`", "").startswith(found["loop"]["description"].removesuffix("."))


def test_the_defaults_of_the_server_are_named(monkeypatch):
    about = catalog_of(Defaults(strategy=named("mtp:3", None), recover="loop,min:20"))
    assert about["strategy"] == "mtp:3"
    assert about["recover"] == "loop,min:20"
    monkeypatch.setenv("DFLASH_MIN_TOKENS", "7")
    assert catalog_of(Defaults())["recover"] == "min:7"
