// An element with its attributes, those that are undefined left out, and what is in it.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined) {
      made.setAttribute(name, value);
    }
  }
  made.append(...children);
  return made;
}
