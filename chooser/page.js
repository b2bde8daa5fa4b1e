// The page: what is chosen, and what follows from that in each of its places.
import { element } from "./element.js";
import { compare, Template } from "./project.js";
import { asDifference, asText, numberOfLines } from "./text.js";
import { Tree } from "./tree.js";

const FIRST_FILE = "README.md";
const SHOWN_AS = { true: "yes", false: "no" };
const FILE_NAME = "my-ddl-project.zip";

const $ = (id) => document.getElementById(id);
const template = new Template($("data").textContent);
const state = {
  answers: fromAddress(),
  previous: undefined,
  selected: FIRST_FILE,
  asDifference: false,
};
const tree = new Tree($("tree"), ["scripts", "src"], (name) => {
  state.selected = name;
  showFile();
});

// Answers ------------------------------------------------------------------------------------------------------

// The answers that the address holds behind its #; what is no answer is ignored, what is refused replaced.
function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const answers = { ...template.defaults };
  for (const { name, answers: offered } of template.questions) {
    if (offered.some(({ value }) => value === given.get(name))) {
      answers[name] = given.get(name);
    }
  }
  return { ...answers, ...template.combination(answers).nearest };
}

function choose(answers) {
  if (JSON.stringify(answers) === JSON.stringify(state.answers)) {
    return;
  }
  state.previous = state.answers;
  state.answers = answers;
  history.replaceState(null, "", "#" + new URLSearchParams(template.changed(answers)));
  show();
}

// What a project is compared with: undefined before the first choice.
function otherAnswers() {
  return $("other").value === "default" ? template.defaults : state.previous;
}

// Questions ----------------------------------------------------------------------------------------------------

function writeQuestions() {
  for (const { name, prompt, answers } of template.questions) {
    const options = answers.map(({ value, label }) =>
      element(
        "label",
        { title: label || undefined },
        element("input", { type: "radio", name, value, "aria-describedby": `about-${name}` }),
        element("span", {}, SHOWN_AS[value] ?? value),
      ),
    );
    $("questions").append(
      element(
        "fieldset",
        {},
        element("legend", {}, prompt),
        element("div", { class: "options" }, ...options),
        element("p", { class: "about", id: `about-${name}` }),
        element("ul", { class: "refused", id: `refused-${name}` }),
      ),
    );
  }
  $("questions").addEventListener("change", ({ target }) =>
    choose({ ...state.answers, [target.name]: target.value }),
  );
}

function showQuestions() {
  const target = template.resolved(state.answers);
  for (const { name, answers } of template.questions) {
    const refusals = new Map();
    for (const { value, label } of answers) {
      const input = document.querySelector(`input[name="${name}"][value="${value}"]`);
      const { why, nearest } = template.combination({ ...state.answers, [name]: value });
      input.checked = state.answers[name] === value;
      input.disabled = why !== null;
      if (input.checked) {
        $(`about-${name}`).textContent = value === "auto" ? `${label}. Now ${target[name]}.` : label;
      }
      if (why) {
        // Answers that are refused for the same reason share a sentence.
        const same = refusals.get(why + Object.values(nearest)) ?? { name, values: [], why, nearest };
        same.values.push(value);
        refusals.set(why + Object.values(nearest), same);
      }
    }
    $(`refused-${name}`).replaceChildren(...[...refusals.values()].map((refusal) => sentence(refusal, target)));
  }
}

// Why some answers of a question are refused, and the nearest target that works: a button, unless it is chosen already.
function sentence({ name, values, why, nearest }, target) {
  const works = Object.values(nearest).join(", ");
  const start = [element("b", {}, values.join(", ")), `: ${why}. Nearest: `];
  if (works === Object.values(target).join(", ")) {
    return element("li", {}, ...start, "as chosen.");
  }
  const button = element("button", { type: "button", class: "instead" }, works);
  button.addEventListener("click", () => {
    choose({ ...state.answers, ...nearest });
    // The button has gone with its sentence.
    document.querySelector(`input[name="${name}"]:checked`).focus();
  });
  return element("li", {}, ...start, button);
}

// The project --------------------------------------------------------------------------------------------------

function show() {
  state.files = template.filesOf(state.answers);
  const other = otherAnswers();
  state.other = other && template.filesOf(other);
  state.marks = state.other ? compare(state.other, state.files) : new Map();
  // A line ends between words, not at the dashes in them.
  const words = template.command(state.answers).split(" ");
  $("line").replaceChildren(...words.flatMap((word) => [element("span", {}, word), " "]).slice(0, -1));
  showQuestions();
  showSummary();
  for (const name of state.marks.keys()) {
    tree.reveal(name);
  }
  showTree();
}

function showSummary() {
  const count = { added: 0, removed: 0, changed: 0 };
  for (const mark of state.marks.values()) {
    count[mark] += 1;
  }
  const counted = Object.entries(count).filter(([, number]) => number > 0);
  const same = state.other ? "no file differs" : "nothing to compare yet";
  $("summary").textContent = counted.map(([mark, number]) => `${number} ${mark}`).join(", ") || same;
  $("only").disabled = state.marks.size === 0;
}

function showTree() {
  const differing = [...state.marks.keys()];
  const only = $("only").checked && differing.length > 0;
  const names = only ? differing : [...new Set([...state.files.keys(), ...differing])];
  if (!names.includes(state.selected)) {
    state.selected = only ? names[0] : FIRST_FILE;
  }
  tree.show(names, state.marks, state.selected);
  showFile();
}

function showFile() {
  const name = state.selected;
  const text = state.files.get(name);
  const removed = text === undefined;
  const asked = state.asDifference || removed;
  $("name").textContent = name;
  const facts = removed ? ["not in this project"] : [`${numberOfLines(text)} lines`];
  $("facts").textContent = [...facts, ...(template.isExecutable(name) ? ["executable"] : [])].join(", ");
  $("as-text").disabled = removed;
  $("as-difference").disabled = !state.other;
  $("as-text").setAttribute("aria-pressed", !asked);
  $("as-difference").setAttribute("aria-pressed", asked);
  $("text").replaceChildren(...(asked ? asDifference(state.other?.get(name), text) : asText(name, text)));
  $("text").scrollTop = 0;
}

// Buttons ------------------------------------------------------------------------------------------------------

function look(asDifference) {
  state.asDifference = asDifference;
  showFile();
}

async function copy() {
  await navigator.clipboard.writeText($("line").textContent);
  $("copy").textContent = "Copied";
  setTimeout(() => ($("copy").textContent = "Copy"), 1500);
}

function download() {
  const address = URL.createObjectURL(new Blob([template.zip(state.files)], { type: "application/zip" }));
  element("a", { href: address, download: FILE_NAME }).click();
  // Not at once: the browser still reads it.
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

writeQuestions();
show();
$("other").addEventListener("change", show);
$("only").addEventListener("change", showTree);
$("as-text").addEventListener("click", () => look(false));
$("as-difference").addEventListener("click", () => look(true));
$("copy").addEventListener("click", copy);
$("download").addEventListener("click", download);
addEventListener("hashchange", () => choose(fromAddress()));
