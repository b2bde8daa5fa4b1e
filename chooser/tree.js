// The tree of files: one line per file or folder, moved through by the arrow keys, Home and End.
import { element } from "./element.js";

export class Tree {
  // opened: which folders are open at first; onSelect is called with the name of a file.
  constructor(root, opened, onSelect) {
    this.root = root;
    this.open = new Set(opened);
    this.onSelect = onSelect;
    this.names = [];
    this.marks = new Map();
    root.addEventListener("click", (event) => {
      const row = event.target.closest("[role=treeitem]");
      if (row) {
        this.activate(row.dataset.path);
      }
    });
    root.addEventListener("keydown", (event) => this.onKey(event));
  }

  // names: every file to be shown, removed ones too; marks: what became of those that differ.
  show(names, marks, selected) {
    this.names = [...names].sort();
    this.marks = marks;
    this.selected = selected;
    this.draw();
  }

  reveal(name) {
    for (let end = name.indexOf("/"); end !== -1; end = name.indexOf("/", end + 1)) {
      this.open.add(name.slice(0, end));
    }
  }

  // Folders before files, as editors show them; what a closed folder holds is left out.
  rows() {
    const rows = [];
    const walk = (folder, names, level) => {
      const folders = new Map();
      const files = [];
      for (const name of names) {
        const rest = name.slice(folder.length);
        if (rest.includes("/")) {
          const path = folder + rest.slice(0, rest.indexOf("/"));
          folders.set(path, [...(folders.get(path) ?? []), name]);
        } else {
          files.push(name);
        }
      }
      const size = folders.size + files.length;
      let position = 0;
      for (const [path, inside] of folders) {
        position += 1;
        rows.push({ path, level, size, position, inside });
        if (this.open.has(path)) {
          walk(path + "/", inside, level + 1);
        }
      }
      for (const path of files) {
        position += 1;
        rows.push({ path, level, size, position });
      }
    };
    walk("", this.names, 1);
    return rows;
  }

  draw() {
    const focused = this.root.contains(document.activeElement);
    const rows = this.rows();
    if (!rows.some(({ path }) => path === this.current)) {
      this.current = rows.some(({ path }) => path === this.selected) ? this.selected : rows[0]?.path;
    }
    this.root.replaceChildren(...rows.map((row) => this.line(row)));
    if (focused) {
      this.focus(this.current);
    }
  }

  line({ path, level, size, position, inside }) {
    const mark = inside ? (inside.some((name) => this.marks.has(name)) ? "differs" : "") : this.marks.get(path);
    const row = element(
      "div",
      {
        role: "treeitem",
        class: [inside ? "folder" : "file", mark].filter(Boolean).join(" "),
        tabindex: path === this.current ? 0 : -1,
        "aria-level": level,
        "aria-setsize": size,
        "aria-posinset": position,
        "aria-selected": path === this.selected,
        ...(inside && { "aria-expanded": this.open.has(path) }),
      },
      element("span", { class: "name" }, path.slice(path.lastIndexOf("/") + 1)),
      mark ? element("span", { class: "mark" }, mark) : "",
    );
    row.dataset.path = path;
    row.style.setProperty("--level", level);
    return row;
  }

  focus(path) {
    this.current = path;
    for (const row of this.root.children) {
      row.tabIndex = row.dataset.path === path ? 0 : -1;
    }
    this.root.querySelector("[tabindex='0']")?.focus();
  }

  // Open or close a folder, or select a file.
  activate(path) {
    this.current = path;
    if (this.names.includes(path)) {
      this.selected = path;
      this.onSelect(path);
    } else if (!this.open.delete(path)) {
      this.open.add(path);
    }
    this.draw();
    this.focus(path);
  }

  onKey(event) {
    const rows = [...this.root.children];
    const index = rows.indexOf(document.activeElement);
    if (index === -1 || event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    const { path } = rows[index].dataset;
    const expanded = rows[index].getAttribute("aria-expanded");
    const move = (row) => row && (this.focus(row.dataset.path), row.scrollIntoView({ block: "nearest" }));
    const parent = () => rows.findLast((row) => path.startsWith(row.dataset.path + "/"));
    const keys = {
      ArrowDown: () => move(rows[index + 1]),
      ArrowUp: () => move(rows[index - 1]),
      Home: () => move(rows[0]),
      End: () => move(rows.at(-1)),
      ArrowRight: () => (expanded === "false" ? this.activate(path) : expanded && move(rows[index + 1])),
      ArrowLeft: () => (expanded === "true" ? this.activate(path) : move(parent())),
      Enter: () => this.activate(path),
      " ": () => this.activate(path),
    };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  }
}
