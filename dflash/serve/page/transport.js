// Requests to the server: the API key, errors, server-sent events.

const KEY = "dflash.key";
let asking = null;

/** Ask for the API key once, however many requests wait for it; resolves to false if the user cancels. */
function askKey() {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key");
    dialog.returnValue = "";
    byId("key-value").value = "";
    dialog.addEventListener(
      "close",
      () => {
        asking = null;
        const value = byId("key-value").value.trim();
        byId("key-value").value = "";
        const given = dialog.returnValue === "use" && value !== "";
        if (given) sessionStorage.setItem(KEY, value);
        resolve(given);
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
}

/** Send a request and return its response; a body makes it a POST. Throws an Error with the server's message. */
async function send(path, body = null, signal = null) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...(key && { Authorization: `Bearer ${key}` }), ...(body && { "Content-Type": "application/json" }) };
    const method = body ? "POST" : "GET";
    const response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
    if (response.ok) return response;
    if (response.status !== 401) throw new Error(await messageOf(response));
    // another request may have got a key while this one was under way
    if (sessionStorage.getItem(KEY) === key && !(await askKey())) throw new Error(await messageOf(response));
    signal?.throwIfAborted();
  }
}

/** Return the message of an error response. */
async function messageOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `the server answered ${response.status} ${text.slice(0, 200)}`;
  }
}

/** Yield the JSON objects of a stream of server-sent events, up to `[DONE]`. Throws if the stream ends before that. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection was closed before the end");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = /^data: ?(.*?)\r?$/.exec(line);
      if (!data) continue;
      if (data[1] === "[DONE]") return;
      const event = JSON.parse(data[1]);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}
