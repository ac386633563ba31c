"""Input items of stored responses, and counts of the tokens of an input, through OpenAI's library."""

import openai
import pytest

INPUT = [
    {"role": "user", "content": "List the files."},
    {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}", "id": "fc_1"},
    {"type": "function_call_output", "call_id": "c", "output": "a.py"},
    {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
]


def test_items_are_listed_with_ids_and_types(client):
    response = client.responses.create(model="demo", input=INPUT, max_output_tokens=1)
    items = list(client.responses.input_items.list(response.id, order="asc"))
    assert [item.type for item in items] == ["message", "function_call", "function_call_output", "message"]
    assert [item.content[0].text for item in (items[0], items[3])] == ["List the files.", "And?"]
    assert items[1].id == "fc_1"
    assert len({item.id for item in items}) == 4
    newest = list(client.responses.input_items.list(response.id))
    assert [item.id for item in newest] == [item.id for item in reversed(items)]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_follow_each_other(http, client, order):
    response = client.responses.create(model="demo", input=INPUT, max_output_tokens=1)
    path = f"/v1/responses/{response.id}/input_items"
    whole = http.get(path, params={"order": order}).json()
    assert (len(whole["data"]), whole["has_more"]) == (4, False)
    found, after = [], {}
    while True:
        page = http.get(path, params={"order": order, "limit": 3, **after}).json()
        found += page["data"]
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert found == whole["data"]


def test_a_later_response_lists_its_own_items(client):
    first = client.responses.create(model="demo", input="One", max_output_tokens=1)
    second = client.responses.create(model="demo", input="Two", previous_response_id=first.id, max_output_tokens=1)
    (item,) = client.responses.input_items.list(second.id)
    assert item.content[0].text == "Two"


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": 0}, "limit"), ({"limit": "x"}, "limit"), ({"order": "up"}, "order"), ({"after": "x"}, "after")],
)
def test_a_bad_query_names_the_parameter(http, client, query, param):
    response = client.responses.create(model="demo", input="One", max_output_tokens=1)
    answer = http.get(f"/v1/responses/{response.id}/input_items", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_an_unknown_response_has_no_items(client):
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list("resp_none")


def test_the_tokens_of_an_input_are_counted(client):
    response = client.responses.create(model="demo", input=INPUT, instructions="Be brief.", max_output_tokens=1)
    counted = client.responses.input_tokens.count(model="demo", input=INPUT, instructions="Be brief.")
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == response.usage.input_tokens
