// The few members of the DOM that the page's Markdown uses, for Node. `made` counts the nodes.
let made = 0;

class Node {
  constructor(tag) {
    Object.assign(this, { tag, attributes: {}, childNodes: [], className: "" });
    made += 1;
  }
  setAttribute(name, value) {
    if (name === "class") this.className = value;
    else this.attributes[name] = String(value);
  }
  append(...children) {
    this.childNodes.push(...children);
  }
  replaceChildren(...children) {
    this.childNodes = children;
  }
  addEventListener() {}
  get lastChild() {
    return this.childNodes.length ? { remove: () => this.childNodes.pop() } : null;
  }
  get children() {
    return this.childNodes.filter((each) => each instanceof Node);
  }
  get lastElementChild() {
    return this.children.at(-1);
  }
  get tagName() {
    return this.tag.toUpperCase();
  }
  querySelector(tag) {
    for (const each of this.children) {
      const found = each.tag === tag ? each : each.querySelector(tag);
      if (found) return found;
    }
    return undefined;
  }
}

const create = (tag) => new Node(tag);
globalThis.document = { createElement: create, createElementNS: (_, tag) => create(tag), getElementById: () => null };

/** Return a node as `[tag, {href}, ...children]`; neighbouring texts are one. */
function tree(node) {
  if (typeof node === "string") return node;
  const children = [];
  for (const each of node.childNodes.map(tree)) {
    if (typeof each === "string" && typeof children.at(-1) === "string") children.push(children.pop() + each);
    else children.push(each);
  }
  const { href } = node.attributes;
  return [node.tag, ...(href ? [{ href }] : []), ...children];
}

/** Return what stands in the frame of a code block or of a table. */
function plain(node) {
  if (node[0] === "div" && node.at(-1)[0] === "pre") return node.at(-1);
  return node[0] === "div" && node[1][0] === "table" ? node[1] : node;
}

const shown = (view) => tree(view.element).slice(1).map(plain);

/** Return the blocks of a text. */
function render(text) {
  const view = new MarkdownView(new Node("div"));
  view.append(text);
  view.draw(true);
  return shown(view);
}
