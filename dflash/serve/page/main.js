// Connects the controls of the page.

const settings = new Settings();
const conversation = new Conversation(settings);

/** Show a short message under the field of the message. */
function showStatus(text) {
  byId("status").textContent = text;
}

/** Show the button that applies: Stop while something runs, else Send. */
function showRunning(running) {
  const held = running ? document.activeElement === byId("send") : document.activeElement === byId("stop");
  byId("send").hidden = running;
  byId("stop").hidden = !running;
  if (running) showStatus("The model is writing.");
  if (held) byId("prompt").focus();
}

/** Open or close the settings. */
function showSettings(open) {
  byId("settings").hidden = !open;
  byId("toggle").setAttribute("aria-expanded", String(open));
  document.body.classList.toggle("settings-open", open);
}

async function sendPrompt() {
  const text = byId("prompt").value.trim();
  if (text && (await conversation.say(text))) byId("prompt").value = "";
}

async function loadServer() {
  try {
    await settings.load();
    const models = await (await send("/v1/models")).json();
    byId("model").textContent = models.data[0]?.id ?? "";
  } catch (error) {
    showStatus(error.message);
  }
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  sendPrompt();
});
onEnter(byId("prompt"), sendPrompt);
byId("stop").addEventListener("click", () => conversation.stop());
byId("toggle").addEventListener("click", () => showSettings(byId("settings").hidden));
byId("new").addEventListener("click", () => {
  conversation.clear();
  byId("prompt").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !byId("key").open) conversation.stop();
});
showSettings(!matchMedia("(max-width: 50rem)").matches);
loadServer();
