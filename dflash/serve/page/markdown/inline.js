// Markdown inside a line: code, links, bold, emphasis, strikethrough. Links lead to the web or to an address of mail only.

const INLINE = new RegExp(
  [
    /\\(?<escaped>[!-/:-@[-`{-~])/,
    /``(?<code2>[^\n]{1,400}?)``(?!`)/,
    /`(?<code>[^`]+)`/,
    /!?\[(?<label>[^[\]]{1,500})\]\(<?(?<url>[^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:\s+"[^"]{0,300}")?\)/,
    /<(?<auto>(?:https?:\/\/|mailto:)[^\s<>]+)>/,
    /(?<bare>https?:\/\/[^\s<>"]*[^\s<>"'.,;:!?)\]*_~`])/,
    /\*\*(?=\S)(?<strong>(?:[^*]|\*(?!\*))+)\*\*/,
    /(?<![\p{L}\p{N}_])__(?<strong2>[^_\n]+)__(?![\p{L}\p{N}_])/u,
    /~~(?<gone>[^~]+)~~/,
    /\*(?<soft>[^*\s](?:[^*]*[^*\s])?)\*/,
    /(?<![\p{L}\p{N}_])_(?<soft2>[^_\n]+)_(?![\p{L}\p{N}_])/u,
  ].map((part) => part.source).join("|"),
  "gdu",
);

const TAGS = { code: "code", code2: "code", strong: "strong", strong2: "strong", gone: "del", soft: "em", soft2: "em" };
const MAX_INLINE = 8;

/** Return an address that is safe to follow, else null: scripts and data are no addresses here. */
function safeUrl(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** Return an empty link that tells the other site nothing about this page. */
const linkNode = (href) => make("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" });

/** Append a part of a source to an element; `paint` appends characters as they are. */
function appendInline(element, source, paint, from = 0, to = source.text.length, depth = 0) {
  if (depth > MAX_INLINE) return paint(element, source, from, to);
  let end = from;
  for (const found of source.text.slice(from, to).matchAll(INLINE)) {
    const { groups, indices } = found;
    const name = Object.keys(groups).find((key) => groups[key] !== undefined && key !== "url");
    const [start, stop] = indices.groups[name].map((place) => place + from);
    const link = { label: groups.url, auto: groups.auto, bare: groups.bare }[name];
    const href = link === undefined ? null : safeUrl(link);
    if (link !== undefined && href === null) continue;
    paint(element, source, end, from + found.index);
    end = from + found.index + found[0].length;
    if (name === "escaped") paint(element, source, start, stop);
    else {
      const inner = link === undefined ? make(TAGS[name]) : linkNode(href);
      if (name === "label" || !(link !== undefined || name.startsWith("code"))) appendInline(inner, source, paint, start, stop, depth + 1);
      else paint(inner, source, start, stop);
      element.append(inner);
    }
  }
  paint(element, source, end, to);
}
