"""Names of conversations in bodies and headers of real clients."""

import json

import pytest

from dflash.serve.parsing.session_id import MAX_SESSION_ID, session_id

CLAUDE = json.dumps({"device_id": "0" * 64, "account_uuid": "", "session_id": "claude-1"})


@pytest.mark.parametrize(
    ("body", "headers", "name"),
    [
        ({"prompt_cache_key": "codex-1", "client_metadata": {"session_id": "x"}, "user": "me"}, {}, "codex-1"),
        ({"metadata": {"user_id": CLAUDE}, "user": "me"}, {}, "claude-1"),
        ({"metadata": {"user_id": "user_1_account__session_2"}}, {}, "user_1_account__session_2"),
        ({"metadata": {"user_id": '{"device_id": "d"}'}}, {}, '{"device_id": "d"}'),
        ({"metadata": {"user_id": "{broken"}}, {}, "{broken"),
        ({"messages": []}, {"x-session-id": "ses_1", "x-session-affinity": "ses_1"}, "ses_1"),
        ({"session_id": "s", "prompt_cache_key": "p", "user": "u"}, {"x-session-id": "h"}, "s"),
        ({"session_id": " ", "user": " u "}, {}, "u"),
        ({"user": "x" * MAX_SESSION_ID}, {}, "x" * MAX_SESSION_ID),
        ({"user": "x" * (MAX_SESSION_ID + 1)}, {}, None),
        ({"user": 5, "session_id": ["a"], "metadata": "m", "prompt_cache_key": {}}, {}, None),
        ({"metadata": {"user_id": "[" * 400}}, {}, "[" * 400),
        ({"metadata": {"user_id": '{"session_id": 5}'}}, {}, None),
        ({}, {}, None),
        ([], {}, None),
        (None, None, None),
    ],
)
def test_the_id_of_a_request(body, headers, name):
    assert session_id(body, headers) == name
