// Speed and text of strategies against each other.

/** Return the note below two completions. */
function verdictNode(first, second) {
  const same = sameText(first, second);
  const text = same ? "The texts are identical." : "The texts differ. The conversation continues with the first.";
  return make("p", { class: `note verdict ${same ? "same" : "differ"}`, role: "status" }, `${text} Both ran at the same time and shared the machine, so their speeds say little.`);
}

/** Describe one lane's speed against another's; each had the machine for itself. */
function ratioWords(one, other) {
  const times = (one.rate / other.rate).toFixed(2);
  const same = sameText(one, other) ? "same text" : "another text";
  return `${other.shown}: ${other.rate.toFixed(1)} tok/s. ${one.shown}: ${one.rate.toFixed(1)} tok/s, ${times} times its speed; ${same}.`;
}

/** Return a button that runs a request with each strategy alone, without the prefix cache, and then shows their speeds. */
function measureButton(label, thread, request, names) {
  const button = makeButton(label, async () => {
    if (thread.running) return;
    button.disabled = true;
    const progress = make("p", { class: "numbers muted" });
    button.after(progress);
    const lanes = [];
    const problem = await thread.run(async (signal) => {
      for (const { strategy, shown } of names) {
        const alone = async () => {
          const lane = newLane(strategy, shown);
          const writer = new LaneWriter(lane);
          await streamInto({ ...request, cache_prompt: false }, strategy, signal, (chunk) => {
            writer.take(chunk);
            progress.textContent = [`${shown} alone`, ...measured(lane)].join(" · ");
          });
          return lane;
        };
        const first = await alone();
        lanes.push(first.warmUp ? await alone() : first);
      }
    });
    progress.remove();
    button.disabled = false;
    if (problem) button.after(make("p", { class: "error", role: "alert" }, problem));
    const [one, other] = lanes;
    if (other && one.rate !== null && other.rate !== null) button.replaceWith(make("p", { class: "note measured", role: "status" }, ratioWords(one, other)));
  }, { class: "quiet" });
  return button;
}

/** Send a request with a strategy, "" for the server's default, and pass every chunk on. */
async function streamInto(request, strategy, signal, take) {
  const body = { ...request, stream: true, stream_options: { include_usage: true }, dflash: { steps: true, tokens: true } };
  if (strategy) body.strategy = strategy;
  const response = await send("/v1/chat/completions", body, signal);
  for await (const chunk of eventsOf(response)) take(chunk);
}
