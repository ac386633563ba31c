// The settings: what the server offers, and the fields of a request that the user has chosen.

const SAVED = "settings";

/** Parameters below which a model counts as a toy that may write without end, and the tokens that it then gets. */
const SMALL_MODEL = 3e8;
const SMALL_MODEL_TOKENS = 1024;

const EXAMPLE = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the weather of a city.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

class Settings {
  constructor() {
    this.form = byId("settings");
    this.offer = { strategy: "plain", recover: "", strategies: [], recoveries: [] };
    this.defaultTokens = null;
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", () => this.changed());
    byId("example").addEventListener("click", () => {
      this.form.elements.tools.value = JSON.stringify(EXAMPLE, null, 1);
      this.changed();
    });
    for (const number of ["", "2"]) {
      // this runs before the form's own listener, which reads the name
      byId(`listed${number}`).addEventListener("input", (event) => {
        byId(`strategy${number}`).value = event.target.selectedOptions[0].dataset.name;
      });
    }
  }

  /** Ask the server for its strategies and recoveries, and show them. */
  async load() {
    this.offer = await (await send("/v1/strategies")).json();
    const { strategies, recoveries, strategy, recover } = this.offer;
    byId("fixed").hidden = strategies.length > 0;
    this.form.querySelector(".choosable").hidden = strategies.length === 0;
    const examples = strategies.filter((each) => !each.needs_parts).map((each) => each.id);
    for (const number of ["", "2"]) {
      const options = strategies.map((each) => {
        const name = each.needs_parts ? `${each.id}(${examples.slice(-2).join(", ")})` : each.id;
        return make("option", { value: each.id, "data-name": name }, each.id);
      });
      const first = make("option", { value: "", "data-name": "" }, `the server's default: ${strategy}`);
      byId(`listed${number}`).replaceChildren(first, ...options);
    }
    if (!byId("strategy2").value) byId("strategy2").value = this.has("plain") ? "plain" : "";
    byId("server-recover").textContent = recover || "none";
    byId("recoveries").replaceChildren(...recoveries.map(recoveryNode));
    this.restore(sessionStorage.getItem(`dflash.${SAVED}`) ?? remembered.get(SAVED) ?? "[]");
    this.changed();
  }

  /** Take note of the model: a toy gets fewer tokens where the user sets no limit. */
  setModel(model) {
    const size = model?.meta?.n_params;
    this.defaultTokens = size && size < SMALL_MODEL ? SMALL_MODEL_TOKENS : null;
    this.form.elements.max_tokens.placeholder = this.defaultTokens ? `${this.defaultTokens}` : "until it ends";
  }

  /** Choose one strategy, or two to compare. */
  choose(first, second = null) {
    byId("strategy").value = first;
    byId("compare").checked = second !== null;
    if (second !== null) byId("strategy2").value = second;
    this.form.dispatchEvent(new Event("input"));
  }

  has(id) {
    return this.offer.strategies.some((each) => each.id === id);
  }

  /** Bring everything that depends on the fields up to date, and save them for a reload of the tab. */
  changed() {
    for (const number of ["", "2"]) {
      const name = byId(`strategy${number}`).value.trim();
      const entry = this.offer.strategies.find((each) => each.id === /^[a-z0-9-]*/.exec(name)[0]);
      byId(`listed${number}`).value = entry?.id ?? "";
      byId(`about${number}`).textContent = entry ? `${entry.forms.join(" or ")}: ${entry.description}` : "";
      byId(`strategy${number}`).placeholder = this.offer.strategy;
      byId(`strategy${number}`).labels[0].querySelector(".form").textContent = exampleOf(entry) ?? "dflash:7";
    }
    byId("second").hidden = !byId("compare").checked;
    byId("recoveries").hidden = byId("default-recover").checked;
    const { tools } = this.form.elements;
    const problem = this.tools().problem;
    byId("tools-error").textContent = problem;
    tools.setAttribute("aria-invalid", String(problem !== ""));
    const saved = [...this.form.elements].filter((field) => field.name);
    const values = JSON.stringify(saved.map((field) => [field.name, field.type === "checkbox" ? field.checked : field.value]));
    sessionStorage.setItem(`dflash.${SAVED}`, values);
    remembered.set(SAVED, values);
  }

  /** Fill the fields with saved values: those of this tab, else the latest of any tab. */
  restore(values) {
    for (const [name, value] of JSON.parse(values)) {
      const field = this.form.elements.namedItem(name);
      if (field?.type === "checkbox") field.checked = value;
      else if (field) field.value = value;
    }
  }

  /** Return `{list, problem}` of the tools; the problem is "" if there is none. */
  tools() {
    const text = this.form.elements.tools.value.trim();
    if (!text) return { list: [], problem: "" };
    try {
      const list = JSON.parse(text);
      return Array.isArray(list) ? { list, problem: "" } : { list: [], problem: "Tools must be a JSON list." };
    } catch (error) {
      return { list: [], problem: `Not JSON: ${error.message}` };
    }
  }

  /** Return the names of the strategies to run: one, or two to compare. */
  strategies() {
    const names = [byId("strategy").value.trim()];
    if (byId("compare").checked && this.offer.strategies.length) names.push(byId("strategy2").value.trim());
    return names;
  }

  /** Return the fields of a request without messages and strategy. A random seed is chosen here: several requests share it. */
  fields() {
    const { elements } = this.form;
    const number = (name) => (elements[name].value === "" ? null : Number(elements[name].value));
    const { list, problem } = this.tools();
    if (problem) throw new Error(problem);
    const invalid = [...elements].find((field) => field.name && !field.checkValidity());
    if (invalid) throw new Error(`${invalid.labels[0].textContent}: ${invalid.validationMessage}`);
    const fields = {
      temperature: number("temperature") ?? 0,
      top_p: number("top_p") ?? 1,
      seed: number("seed") ?? crypto.getRandomValues(new Uint32Array(1))[0],
    };
    const most = number("max_tokens") ?? this.defaultTokens;
    if (most !== null) fields.max_tokens = most;
    if (list.length) fields.tools = list;
    if (elements.thinking.value) fields.chat_template_kwargs = { enable_thinking: elements.thinking.value === "true" };
    if (!elements["default-recover"].checked) fields.recover = this.recoveries();
    return fields;
  }

  recoveries() {
    const chosen = this.offer.recoveries.filter((each) => this.form.elements[`recover:${each.id}`].checked);
    return chosen.map((each) => {
      const value = this.form.elements[`value:${each.id}`]?.value.trim();
      return value ? `${each.id}:${value}` : each.id;
    });
  }

  /** Return the system message, if there is one, as a list. */
  system() {
    const content = this.form.elements.system.value.trim();
    return content ? [{ role: "system", content }] : [];
  }
}

/** Words for what may follow a recovery's colon. */
const VALUES = { N: "number of tokens", BODY: "longest loop, in tokens", TOOL: "name of a tool" };

/** Return an example of a strategy with its options; null if it has none. */
function exampleOf(entry) {
  if (!entry) return null;
  if (entry.needs_parts) return `${entry.id}(lookup, mtp:3)`;
  const number = { DEPTH: 7, NODES: 22, TOKENS: 8 }[/:([A-Z]+)/.exec(entry.forms[0])?.[1]];
  return number ? `${entry.id}:${number}` : entry.id;
}

/** Return the switch of a recovery, with a field for its value if it takes one. */
function recoveryNode({ id, value, description }) {
  const check = make("input", { type: "checkbox", name: `recover:${id}` });
  const label = make("label", { class: "check" }, check, make("span", {}, id));
  const about = make("p", { class: "muted" }, description);
  const words = VALUES[value] ?? value;
  const field = value && make("input", { name: `value:${id}`, placeholder: words, "aria-label": `${id}: ${words}` });
  return make("div", { class: "recovery" }, label, field, about);
}
