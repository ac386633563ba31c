// Connects the controls of the page.

const tip = new Tip();
const settings = new Settings();
const store = new Store();
const connection = new Connection(serverReady);
const thread = new Thread(settings, store, connection);
const conversations = new ConversationList(store, thread, openConversation);
const attachments = new Attachments(byId("files"), (problem) => showStatus(problem, Boolean(problem)));
const narrow = matchMedia("(max-width: 60rem)");

/** Show a short message under the field of the message. */
function showStatus(text, isError = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("error", isError);
}

/** Show the button that applies: Stop while something runs, else Send. */
function showRunning(running) {
  const held = running ? document.activeElement === byId("send") : document.activeElement === byId("stop");
  byId("send").hidden = running;
  byId("stop").hidden = !running;
  document.body.classList.toggle("running", running);
  if (running) showStatus("The model is writing.");
  if (held) byId("prompt").focus();
}

/** Open or close the settings. */
function showSettings(open) {
  byId("settings").hidden = !open;
  byId("toggle").setAttribute("aria-expanded", String(open));
  document.body.classList.toggle("settings-open", open);
  if (open && narrow.matches) showHistory(false);
}

/** Open or close the list of conversations. */
function showHistory(open) {
  byId("history").hidden = !open;
  byId("list").setAttribute("aria-expanded", String(open));
  document.body.classList.toggle("history-open", open);
}

/** Show a conversation; null begins a new one. */
function openConversation(conversation) {
  thread.show(conversation);
  if (!conversation) history.replaceState(null, "", location.pathname);
  if (narrow.matches) showHistory(false);
  byId("prompt").focus();
  conversations.draw();
  showTitle();
}

function showTitle() {
  const { title } = thread.conversation;
  byId("title").textContent = title;
  document.title = title ? `${title} \u00b7 dflash` : "dflash";
}

/** Show which strategies the next answer has. */
function showChosen() {
  const names = settings.strategies().map((name) => name || `${settings.offer.strategy} (default)`);
  byId("chosen").textContent = names.join(" and ");
  byId("chosen").hidden = !settings.offer.strategies.length;
}

function fitPrompt() {
  const prompt = byId("prompt");
  prompt.style.setProperty("height", "auto");
  prompt.style.setProperty("height", `${Math.min(prompt.scrollHeight + 2, innerHeight * 0.4)}px`);
}

async function sendPrompt() {
  const text = byId("prompt").value.trim();
  if ((!text && !attachments.files.length) || !thread.say(text, attachments.files)) return;
  attachments.set([]);
  byId("prompt").value = "";
  fitPrompt();
}

/** Set the strategies of a suggestion and send it. */
function sendSuggestion({ text, strategies = null }) {
  if (strategies) settings.choose(...strategies);
  thread.say(text);
}

/** Ask a server that has become ready what it offers. */
async function serverReady(before) {
  try {
    await settings.load();
    const models = await (await send("/v1/models")).json();
    settings.setModel(models.data[0]);
    byId("model").textContent = models.data[0]?.id ?? "";
    showSuggestions(settings.offer.strategies, sendSuggestion);
    showChosen();
    if (before !== "unknown") showStatus("The server is ready.");
  } catch (error) {
    showStatus(error.message, true);
    connection.failed(error);
  }
}

/** Edit the last message of the user; false if there is none or something is typed. */
function editLast() {
  const buttons = byId("log").querySelectorAll("[aria-label='Edit message']");
  if (byId("prompt").value || !buttons.length || thread.running) return false;
  [...buttons].at(-1).click();
  return true;
}

for (const [id, name] of Object.entries({ attach: "attach", send: "send", stop: "stop", toggle: "settings", "close-settings": "close", list: "list", theme: "theme", help: "keys", export: "download", import: "upload" })) {
  byId(id).prepend(icon(name));
}
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  sendPrompt();
});
onEnter(byId("prompt"), sendPrompt);
byId("prompt").addEventListener("input", fitPrompt);
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "ArrowUp" && editLast()) event.preventDefault();
});
byId("stop").addEventListener("click", () => thread.stop());
byId("toggle").addEventListener("click", () => showSettings(byId("settings").hidden));
byId("close-settings").addEventListener("click", () => {
  showSettings(false);
  byId("toggle").focus();
});
byId("chosen").addEventListener("click", () => {
  showSettings(true);
  byId("listed").focus();
});
byId("list").addEventListener("click", () => showHistory(byId("history").hidden));
byId("new").addEventListener("click", () => openConversation(null));
byId("theme").addEventListener("click", nextTheme);
byId("help").addEventListener("click", showShortcuts);
byId("origins").addEventListener("change", (event) => showOrigins(event.target.checked));
byId("export").addEventListener("click", () => conversations.export());
byId("import").addEventListener("click", () => byId("import-file").click());
byId("import-file").addEventListener("change", async (event) => {
  for (const file of event.target.files) await conversations.import(file);
  event.target.value = "";
});
byId("attach").addEventListener("click", () => byId("file").click());
byId("file").addEventListener("change", async (event) => {
  await attachments.add(event.target.files);
  event.target.value = "";
  byId("prompt").focus();
});
settings.form.addEventListener("input", showChosen);

let dragged = 0;
addEventListener("dragenter", (event) => {
  if (!event.dataTransfer?.types.includes("Files")) return;
  dragged += 1;
  byId("drop").hidden = false;
});
addEventListener("dragleave", () => {
  dragged = Math.max(0, dragged - 1);
  byId("drop").hidden = dragged === 0;
});
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  dragged = 0;
  byId("drop").hidden = true;
  attachments.add(event.dataTransfer.files);
});

listenForKeys({
  Escape: () => {
    tip.hide();
    if (thread.running) thread.stop();
    else if (narrow.matches) [showSettings, showHistory].forEach((show) => show(false));
  },
  "/": () => byId("prompt").focus(),
  "?": showShortcuts,
  "Alt+N": () => openConversation(null),
  "Alt+L": () => showHistory(byId("history").hidden),
  "Alt+S": () => showSettings(byId("settings").hidden),
  "Alt+C": () => showOrigins(!byId("origins").checked),
  "Alt+T": nextTheme,
});
document.addEventListener("visibilitychange", () => document.hidden && thread.running && thread.save(thread.conversation));
thread.onSaved = async () => {
  await conversations.refresh();
  showTitle();
};
showTheme(THEMES.includes(remembered.get("theme")) ? remembered.get("theme") : "auto");
showOrigins(remembered.get("origins") !== "off");
showHistory(!narrow.matches);
showSettings(false);
showRunning(false);
showStatus("");
conversations.refresh().then(() => conversations.openHash()).then(showTitle);
connection.check();
