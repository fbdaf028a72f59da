// Elements. What a tokenizer says becomes text, never HTML.

/** An element with a text, and a title. */
export function element(name, text, title) {
  const made = document.createElement(name);
  made.textContent = text;
  if (title) made.title = title;
  return made;
}

const SHOWN = { "\n": "⏎", "\t": "⇥", " ": "␣" };

/** A token's text with white space that can be seen. */
export function labelled(token) {
  return token ? token.replace(/[\n\t ]/g, (each) => SHOWN[each]) : "∅";
}
