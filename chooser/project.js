// What is known of the template's projects: no element of the page is touched here.
import { gunzipSync, strFromU8, strToU8, zipSync } from "fflate";

const FOLDER = "my-ddl-project";
// Of no importance, but the same for everybody: the oldest time that a zip can hold.
const WRITTEN = new Date(1980, 0, 1);
// Unix, in the words of the zip format.
const UNIX = 3;

export class Template {
  // packed: base64 of gzip of the JSON that build.py writes.
  constructor(packed) {
    const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
    Object.assign(this, JSON.parse(strFromU8(gunzipSync(bytes))));
    this.defaults = Object.fromEntries(this.questions.map(({ name, default: answer }) => [name, answer]));
  }

  // What the answers to the questions of the target stand for, and why they are refused if they are.
  combination(answers) {
    return this.combinations.find(({ features }) => this.target.every((name) => features[name] === answers[name]));
  }

  // The hardware, backend and launcher that "auto" stands for.
  resolved(answers) {
    const { features } = this.combination(answers);
    return Object.fromEntries(this.target.map((name) => [name, features["__" + name] ?? features[name]]));
  }

  // Name and text of each file, as put_together of parts.py finds them.
  filesOf(answers) {
    const features = { ...answers, ...this.combination(answers).features };
    const files = new Map();
    for (const { name, parts } of this.files) {
      const text = parts
        .map(({ questions, texts }) => texts[questions.map((question) => features[question]).join(" ")])
        .map((index) => this.texts[index] ?? "")
        .join("");
      if (text) {
        files.set(name, text);
      }
    }
    return files;
  }

  // The words after --no-input: answers that are not the default.
  changed(answers) {
    return Object.entries(answers).filter(([name, answer]) => answer !== this.defaults[name]);
  }

  command(answers) {
    const words = this.changed(answers).map((pair) => pair.join("="));
    return ["cookiecutter", this.template, "--no-input", ...words].join(" ");
  }

  isExecutable(name) {
    return this.files.find((file) => file.name === name)?.executable ?? false;
  }

  zip(files) {
    const entries = [...files].map(([name, text]) => {
      const mode = this.isExecutable(name) ? 0o100755 : 0o100644;
      return [`${FOLDER}/${name}`, [strToU8(text), { os: UNIX, attrs: mode << 16, mtime: WRITTEN }]];
    });
    return zipSync(Object.fromEntries(entries), { level: 9 });
  }
}

// For each file of either project that differs: added, removed or changed.
export function compare(before, after) {
  const marks = new Map();
  for (const name of [...new Set([...before.keys(), ...after.keys()])].sort()) {
    if (!before.has(name)) {
      marks.set(name, "added");
    } else if (!after.has(name)) {
      marks.set(name, "removed");
    } else if (before.get(name) !== after.get(name)) {
      marks.set(name, "changed");
    }
  }
  return marks;
}
