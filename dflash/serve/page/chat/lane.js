// One completion as data: what has arrived so far. It is saved with the conversation.

/** Return a lane; `strategy` is the name that was asked for, "" the server's default, which is called `shown`. */
const newLane = (strategy, shown) => ({
  strategy, shown, content: "", reasoning: "", calls: [], notes: [], usage: null, finish: null, problem: "",
  steps: [], runs: { reasoning: [], content: [] }, rate: null, warmUp: false, shared: false,
});

/** Collects the chunks of a stream in a lane. */
class LaneWriter {
  constructor(lane) {
    this.lane = lane;
    this.map = new TokenMap(lane.runs);
    this.first = this.last = null;
    this.firstTokens = 0;
  }

  take(chunk) {
    const { lane } = this;
    lane.usage = chunk.usage ?? lane.usage;
    lane.notes.push(...(chunk.interventions ?? []));
    const choice = chunk.choices?.[0];
    lane.finish = choice?.finish_reason ?? lane.finish;
    for (const [part, field] of [["reasoning", "reasoning_content"], ["content", "content"]]) {
      const text = choice?.delta?.[field];
      if (!text) continue;
      lane[part] += text;
      this.map.text(part, text);
    }
    for (const part of choice?.delta?.tool_calls ?? []) this.takeCall(part);
    if (chunk.dflash?.tokens || chunk.dflash?.drafted) this.takeStep(chunk.dflash);
  }

  takeCall(part) {
    const call = (this.lane.calls[part.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= part.id ?? "";
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }

  takeStep({ tokens, drafted, accepted, seconds, pieces, draft, path, warm_up }) {
    const { lane } = this;
    const injected = (pieces ?? []).filter(([origin]) => origin === "injected").length;
    lane.steps.push({ tokens, drafted, accepted, seconds, injected, pieces, draft, path });
    lane.warmUp ||= warm_up === true;
    this.map.step(lane.steps.length - 1, pieces);
    this.last = performance.now();
    if (this.first === null) [this.first, this.firstTokens] = [this.last, tokens];
    const more = totals(lane).tokens - this.firstTokens;
    lane.rate = this.last > this.first && more > 0 ? (more * 1e3) / (this.last - this.first) : null;
  }
}

const SUMS = new WeakMap();

/** Return the sums of a lane's steps. */
function totals({ steps }) {
  if (!SUMS.has(steps)) SUMS.set(steps, { n: 0, tokens: 0, drafted: 0, accepted: 0 });
  const sums = SUMS.get(steps);
  for (; sums.n < steps.length; sums.n += 1) for (const name of ["tokens", "drafted", "accepted"]) sums[name] += steps[sums.n][name];
  return sums;
}

/** True if the server has sent all of it. */
const isWhole = ({ finish }) => finish !== null && !["error", "stopped", "interrupted"].includes(finish);

/** Return whether two lanes have the same reasoning, text and calls. */
function sameText(one, other) {
  const said = (lane) => JSON.stringify([lane.reasoning, lane.content, lane.calls.map((call) => [call.name, call.arguments])]);
  return said(one) === said(other);
}

/** Describe tokens, drafts and speed. */
function measured(lane) {
  const { tokens, drafted, accepted } = totals(lane);
  if (!tokens) return [];
  const parts = [counted(tokens, "token"), `${(tokens / lane.steps.length).toFixed(2)} per step`];
  if (drafted) parts.push(`${Math.round((100 * accepted) / drafted)} % of ${drafted} draft tokens accepted`);
  if (lane.warmUp) parts.push("warm-up: first use here, speed not counted");
  else if (lane.rate !== null) parts.push(`${lane.rate.toFixed(1)} tok/s${lane.shared ? " while sharing the machine" : ""}`);
  return parts;
}

/** Describe the prompt, the cache and the end. */
function facts(lane) {
  const { usage } = lane;
  const finish = lane.finish === "error" && !assistantMessage(lane) ? "none" : lane.finish;
  const prompt = usage?.prompt_tokens;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  return [prompt && `prompt of ${counted(prompt, "token")}, ${cached} from the cache`, finish && endWords(finish)].filter(Boolean);
}

/** Return the message for the conversation; null if nothing has arrived. Calls that were cut off are left out. */
function assistantMessage({ content, reasoning, calls, finish }) {
  if (!content && !reasoning && !calls.length) return null;
  const message = { role: "assistant", content };
  if (reasoning) message.reasoning_content = reasoning;
  if (finish === "tool_calls") message.tool_calls = calls.map(({ id, ...fields }) => ({ id, type: "function", function: fields }));
  return message;
}
