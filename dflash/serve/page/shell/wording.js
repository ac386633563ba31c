// Plain words for what servers and browsers call by other names.

/** Words for the end of an answer. */
const ENDS = {
  stop: "finished",
  length: "ended at the limit of tokens",
  tool_calls: "waits for the results of its tools",
  content_filter: "ended by a filter",
  stopped: "stopped by you",
  error: "cut off",
  none: "no answer",
  interrupted: "cut off when the page was closed",
};

const endWords = (finish) => ENDS[finish] ?? `ended: ${finish}`;

/** A request that failed; `kind` is "offline", "loading", "cut", "busy" or "refused". */
class RequestFailed extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

const OFFLINE = "The server does not answer. Is it still running?";
const CUT = "The connection was cut before the end of the answer. What had arrived is kept.";
const LOADING = "The model is still loading. The page goes on by itself when it is ready.";

/** Return the error that stands for a response which is no success. */
async function failureOf(response) {
  const text = await response.text().catch(() => "");
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // no JSON, as a proxy answers
  }
  if (response.status === 503 && error.code === "loading") return new RequestFailed("loading", LOADING);
  if (error.message && response.status === 503) return new RequestFailed("busy", `The server is busy or stopping: ${error.message}.`);
  if (error.message) return new RequestFailed("refused", `The server refused the request: ${error.message}.`);
  if ([502, 503, 504].includes(response.status)) return new RequestFailed("offline", OFFLINE);
  return new RequestFailed("refused", `The server refused the request with status ${response.status}. ${text.slice(0, 200)}`);
}
