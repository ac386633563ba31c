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

/** Send a request and return its response; a body makes it a POST. Throws `RequestFailed`, or an AbortError. */
async function send(path, body = null, signal = null) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...(key && { Authorization: `Bearer ${key}` }), ...(body && { "Content-Type": "application/json" }) };
    const options = { method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body) };
    const response = await fetch(path, options).catch((error) => {
      throw signal?.aborted ? error : new RequestFailed("offline", OFFLINE);
    });
    if (response.ok) return response;
    if (response.status !== 401) throw await failureOf(response);
    // another request may have got a key while this one was under way
    if (sessionStorage.getItem(KEY) === key && !(await askKey())) throw new RequestFailed("refused", "This server needs an API key.");
    signal?.throwIfAborted();
  }
}

/** Yield the JSON objects of a stream of server-sent events, up to `[DONE]`. Throws `RequestFailed` if it ends before that. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new RequestFailed("cut", CUT);
    });
    if (done) throw new RequestFailed("cut", CUT);
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = /^data: ?(.*?)\r?$/.exec(line);
      if (!data) continue;
      if (data[1] === "[DONE]") return;
      const event = JSON.parse(data[1]);
      if (event.error) throw new RequestFailed("cut", `The server ended the answer: ${event.error.message}.`);
      yield event;
    }
  }
}
