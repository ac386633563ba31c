// Origins of tokens in words, and the draft tokens that were rejected at a token.

const ORIGINS = {
  accepted: "accepted draft token",
  bonus: "bonus token",
  corrected: "bonus token in place of rejected draft tokens",
  injected: "token injected by a recovery",
  rejected: "rejected draft token",
};

/** Return a token's text with spaces and line ends made visible, as shown outside of the text. */
const visible = (text) => text.replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5").replace(/^ +| +$/g, (spaces) => "\u2423".repeat(spaces.length)) || "\u2205";

/** Return the paths of a draft from its roots to its leaves: lists of indices into `draft`. */
function pathsOf(draft) {
  const parents = new Set(draft.map(([, parent]) => parent));
  const leaves = draft.map((_, index) => index).filter((index) => !parents.has(index));
  return leaves.map((leaf) => {
    const path = [];
    for (let node = leaf; node >= 0; node = draft[node][1]) path.unshift(node);
    return path;
  });
}

/** Return the texts of what was drafted instead of token `piece` of a step. */
function rejectedAt({ pieces, draft = [], path = [] }, piece) {
  const injected = pieces.filter(([origin]) => origin === "injected").length;
  const place = piece - injected;
  if (place < 0) return [];
  const last = piece === pieces.length - 1;
  const accepted = new Set(path);
  const found = [];
  for (let at = place; at <= (last ? path.length : place); at += 1) {
    const parent = at === 0 ? -1 : path[at - 1];
    for (const each of pathsOf(draft)) {
      const from = parent < 0 ? 0 : each.indexOf(parent) + 1;
      if ((parent >= 0 && from === 0) || from >= each.length || accepted.has(each[from])) continue;
      found.push(each.slice(from).map((node) => draft[node][0]).join(""));
    }
  }
  return found;
}
