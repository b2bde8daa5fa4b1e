// A file as text with colors, or as the difference to what it was.
import { structuredPatch } from "diff";
import highlighter from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import dockerfile from "highlight.js/lib/languages/dockerfile";
import ini from "highlight.js/lib/languages/ini";
import json from "highlight.js/lib/languages/json";
import markdown from "highlight.js/lib/languages/markdown";
import python from "highlight.js/lib/languages/python";
import yaml from "highlight.js/lib/languages/yaml";
import { element } from "./element.js";

const LANGUAGES = { bash, dockerfile, ini, json, markdown, python, yaml };
const OF_ENDING = {
  ipynb: "json",
  json: "json",
  md: "markdown",
  py: "python",
  sbatch: "bash",
  sh: "bash",
  toml: "ini",
  yaml: "yaml",
  yml: "yaml",
  Dockerfile: "dockerfile",
};
// Lines around a difference.
const CONTEXT = 3;
const CLASSES = { "+": "added", "-": "removed" };

for (const [name, language] of Object.entries(LANGUAGES)) {
  highlighter.registerLanguage(name, language);
}

export function numberOfLines(text) {
  return text.split("\n").length - (text.endsWith("\n") ? 1 : 0);
}

export function asText(name, text) {
  const language = OF_ENDING[name.slice(Math.max(name.lastIndexOf("."), name.lastIndexOf("/")) + 1)];
  const code = element("code");
  if (language) {
    code.innerHTML = highlighter.highlight(text, { language }).value;
  } else {
    code.textContent = text;
  }
  const numbers = Array.from({ length: numberOfLines(text) }, (_, index) => index + 1).join("\n");
  return [element("pre", { class: "numbers", "aria-hidden": true }, numbers), element("pre", {}, code)];
}

// before or after is undefined where the file is not in that project.
export function asDifference(before, after) {
  if (before === after) {
    return [element("p", {}, "The same in both.")];
  }
  const { hunks } = structuredPatch("", "", before ?? "", after ?? "", "", "", { context: CONTEXT });
  const lines = hunks.flatMap(({ oldStart, oldLines, newStart, newLines, lines }) => [
    element("span", { class: "hunk" }, `@@ -${oldStart},${oldLines} +${newStart},${newLines} @@\n`),
    ...lines.map((line) => element("span", { class: CLASSES[line[0]] }, line + "\n")),
  ]);
  return [element("pre", { class: "difference" }, ...lines)];
}
