// From the items of a conversation to the messages of a request.

/** Return the messages for some items. Messages of the user that no answer separates become one. */
function messagesOf(items) {
  const messages = [];
  for (const item of items) {
    if (item.kind === "user") {
      const content = withFiles(item.text, item.files);
      if (messages.at(-1)?.role === "user") messages.at(-1).content += `\n\n${content}`;
      else messages.push({ role: "user", content });
    } else if (item.kind === "results") {
      messages.push(...item.results.map(({ id, content }) => ({ role: "tool", tool_call_id: id, content })));
    } else {
      const message = assistantMessage(item.lanes[0]);
      if (message) messages.push(message);
    }
  }
  return messages;
}

/** Return a title for a conversation that begins with these items. */
function titleOf(items) {
  const first = items.find((item) => item.kind === "user");
  const line = (first?.text.trim() || first?.files?.[0]?.name || "New conversation").split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 59)}\u2026` : line;
}

/** Return a conversation from a file with only what the page knows, so that a strange file can't break it; null if it is none. */
function conversationFrom(value) {
  const text = (some) => (typeof some === "string" ? some : "");
  const list = (some) => (Array.isArray(some) ? some.filter((each) => each && typeof each === "object") : []);
  const number = (some) => (Number.isFinite(some) ? some : 0);
  const lane = (one) => ({
    ...newLane(text(one.strategy), text(one.shown) || "answer"),
    content: text(one.content),
    reasoning: text(one.reasoning),
    problem: text(one.problem),
    finish: text(one.finish) || "interrupted",
    calls: list(one.calls).map((call) => ({ id: text(call.id), name: text(call.name), arguments: text(call.arguments) })),
    notes: (Array.isArray(one.notes) ? one.notes : []).filter((note) => typeof note === "string"),
    steps: list(one.steps).map((step) => stepFrom(step, number, text)),
    rate: Number.isFinite(one.rate) ? one.rate : null,
    warmUp: one.warmUp === true,
    shared: one.shared === true,
  });
  const itemFrom = (item) => {
    if (item.kind === "user") {
      const files = list(item.files).map((file) => ({ name: text(file.name), size: number(file.size), text: text(file.text) }));
      return { kind: "user", text: text(item.text), files };
    }
    if (item.kind === "results") {
      const results = list(item.results).map((each) => ({ id: text(each.id), name: text(each.name), content: text(each.content) }));
      return { kind: "results", results };
    }
    const lanes = list(item.lanes).map(lane).slice(0, 2);
    return item.kind === "answer" && lanes.length ? { kind: "answer", lanes } : null;
  };
  if (!value || typeof value !== "object" || !Array.isArray(value.items)) return null;
  const items = list(value.items).map(itemFrom).filter(Boolean);
  return items.length ? { id: newId(), revision: 0, title: text(value.title) || titleOf(items), changed: number(value.changed), items } : null;
}

/** Return a step from a file: counts, and the tokens if they are all there. */
function stepFrom(step, number, text) {
  const found = { injected: number(step.injected), seconds: number(step.seconds) };
  for (const name of ["tokens", "drafted", "accepted"]) found[name] = Math.max(0, number(step[name]));
  const pieces = Array.isArray(step.pieces) && step.pieces.every((piece) => Array.isArray(piece) && piece[0] in ORIGINS);
  const draft = Array.isArray(step.draft) && step.draft.every((node, index) => Array.isArray(node) && node[1] >= -1 && node[1] < index);
  if (!pieces || !draft || !Array.isArray(step.path)) return found;
  found.pieces = step.pieces.map(([origin, piece]) => [origin, text(piece)]);
  found.draft = step.draft.map(([node, parent]) => [text(node), number(parent)]);
  found.path = step.path.filter((node) => Number.isInteger(node) && node >= 0 && node < found.draft.length);
  return found;
}
