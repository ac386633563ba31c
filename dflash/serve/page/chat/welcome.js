// What the empty page offers: messages that show what the page can do.

/** Return `{title, text, strategies}` for a server that offers these strategies. */
function suggestionsFor(offered) {
  const drafter = ["dflash", "mtp", "lookup"].find((id) => offered.some((each) => each.id === id));
  const second = offered.some((each) => each.id === "plain") ? "plain" : null;
  const found = [{ title: "Ask for a capital", text: "What is the capital of France?" }];
  if (drafter) found.unshift({ title: `Watch ${drafter} draft code`, text: "Write a Python function that computes the greatest common divisor.", strategies: [drafter] });
  else found.unshift({ title: "Write code", text: "Write a Python function that computes the greatest common divisor." });
  if (drafter && second) {
    found.push({ title: `Compare ${drafter} with ${second}`, text: "Write a Python function that reverses a string.", strategies: [drafter, second] });
  }
  return found;
}

/** Show the suggestions; `onChoose` gets the chosen one. */
function showSuggestions(offered, onChoose) {
  byId("suggestions").replaceChildren(...suggestionsFor(offered).map((each) =>
    makeButton(make("strong", {}, each.title), () => onChoose(each), { class: "suggestion" })));
  suggestionsFor(offered).forEach((each, index) => byId("suggestions").children[index].append(make("span", { class: "muted" }, each.text)));
}
