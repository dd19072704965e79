"use strict";
// The theme, the table of all instructions and the instruction that is selected in it. What comes from a module is only
// ever set as text.
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const make = (tag, text, className) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };

  const button = byId("theme");
  const isDark = () => {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const nameTheme = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  nameTheme();

  const data = byId("data");
  if (!data) return;
  const { computations, anchors, columns, rows } = JSON.parse(data.textContent);
  const NAME = 0, HOME = 1, OPCODE = 2, SHAPE = 3, SOURCE = 4, OP_NAME = 5, LINE = 6, OPERANDS = 7, RANK = 8, FIGURES = 9;
  const ROW_HEIGHT = 28, MARGIN = 12, CONTEXT = 7, MOST_LINKS = 24;
  const anchorOf = (row) => anchors[row[HOME]] + "/" + encodeURIComponent(row[NAME]);
  const texts = rows.map((row) => [row[NAME], row[OPCODE], row[SHAPE], row[SOURCE], row[OP_NAME], computations[row[HOME]]]
    .join("\n").toLowerCase());

  const head = [
    { label: "instruction", key: NAME, width: "22%" },
    { label: "opcode", key: OPCODE, width: "12%" },
    { label: "shape", key: SHAPE, width: "17%", isCode: true },
    ...columns.map((column, number) => ({
      label: column.label, title: column.title, key: FIGURES + number, isFigure: column.is_number, width: "8.5rem",
    })),
    { label: "source", key: SOURCE, width: "20%" },
  ];
  const figureText = (value) => {
    if (value === null || value === "") return "–";
    if (typeof value === "string") return value === "inf" ? "∞" : value;
    if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en").replace(/,/g, "\u202f");
    const size = Math.abs(value);
    return size >= 1e-3 && size < 1e4 ? value.toPrecision(3) : value.toExponential(2);
  };
  const amount = (value) => {
    if (value === null || value === "") return -Infinity;
    return value === "inf" ? Infinity : value;
  };

  const view = byId("rows"), table = byId("table"), body = table.tBodies[0], count = byId("count");
  const search = byId("search"), opcode = byId("opcode"), home = byId("computation");
  let shown = rows.map((_, number) => number), order = null, descending = false, current = -1, drawnFrom = -1, drawnTo = -1;

  const headRow = table.tHead.insertRow();
  for (const column of head) {
    const cell = make("th", undefined, column.isFigure ? "figure" : "");
    cell.scope = "col";
    cell.style.width = column.width;
    const sorter = make("button", column.label);
    sorter.type = "button";
    sorter.title = column.title || "sort by " + column.label;
    sorter.addEventListener("click", () => {
      descending = order === column ? !descending : Boolean(column.isFigure);
      order = column;
      for (const each of headRow.cells) each.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
      filter();
    });
    cell.append(sorter);
    headRow.append(cell);
  }

  const fill = (select, counts) => {
    for (const [name, many] of [...counts].sort((one, other) => other[1] - one[1])) {
      const option = make("option", name + " (" + many + ")");
      option.value = name;
      select.append(option);
    }
  };
  const counted = (key) => rows.reduce((found, row) => found.set(key(row), (found.get(key(row)) || 0) + 1), new Map());
  fill(opcode, counted((row) => row[OPCODE]));
  fill(home, counted((row) => computations[row[HOME]]));

  const spacer = (height) => {
    const row = make("tr", undefined, "spacer");
    const cell = make("td");
    cell.colSpan = head.length;
    cell.style.height = height + "px";
    row.setAttribute("aria-hidden", "true");
    row.append(cell);
    return row;
  };
  const link = (number, text) => {
    const element = make("a", text === undefined ? rows[number][NAME] : text);
    element.href = "#" + anchorOf(rows[number]);
    return element;
  };
  const rowOf = (number, place) => {
    const found = make("tr", undefined, number === current ? "current" : "");
    found.setAttribute("aria-rowindex", String(place + 2));
    for (const column of head) {
      const cell = make("td", undefined, column.isFigure ? "figure" : column.isCode ? "code" : "");
      const value = rows[number][column.key];
      if (column.key === NAME) cell.append(link(number));
      else cell.textContent = column.key >= FIGURES ? figureText(value) : value;
      if (!column.isFigure) cell.title = column.key === SOURCE ? value + (rows[number][OP_NAME] ? "\n" + rows[number][OP_NAME] : "") : String(value);
      found.append(cell);
    }
    return found;
  };
  const draw = (isForced) => {
    const from = Math.max(0, Math.floor(view.scrollTop / ROW_HEIGHT) - MARGIN);
    const to = Math.min(shown.length, from + Math.ceil(view.clientHeight / ROW_HEIGHT) + 2 * MARGIN);
    if (!isForced && from === drawnFrom && to === drawnTo) return;
    drawnFrom = from;
    drawnTo = to;
    const drawn = [spacer(from * ROW_HEIGHT)];
    for (let place = from; place < to; place++) drawn.push(rowOf(shown[place], place));
    drawn.push(spacer((shown.length - to) * ROW_HEIGHT));
    body.replaceChildren(...drawn);
  };
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = [];
    for (let number = 0; number < rows.length; number++) {
      const row = rows[number];
      if (opcode.value && row[OPCODE] !== opcode.value) continue;
      if (home.value && computations[row[HOME]] !== home.value) continue;
      if (words.every((word) => texts[number].includes(word))) shown.push(number);
    }
    if (order) {
      const { key, isFigure } = order, sign = descending ? -1 : 1;
      const keys = rows.map((row) => isFigure ? amount(row[key]) : row[key]);
      shown.sort((one, other) => {
        const x = keys[one], y = keys[other];
        return x < y ? -sign : x > y ? sign : one - other;
      });
    }
    table.setAttribute("aria-rowcount", String(shown.length + 1));
    count.textContent = shown.length === rows.length ? figureText(rows.length) : figureText(shown.length) + " of " + figureText(rows.length);
    view.scrollTop = 0;
    draw(true);
  };
  search.form.addEventListener("submit", (event) => event.preventDefault());
  search.addEventListener("input", filter);
  opcode.addEventListener("change", filter);
  home.addEventListener("change", filter);
  view.addEventListener("scroll", () => draw(false), { passive: true });
  addEventListener("resize", () => draw(true));

  // The instruction that is selected: its lines of HLO, operands, users and figures.
  const selected = byId("selected");
  let users = null;
  const usersOf = (number) => {
    if (!users) {
      users = new Map();
      rows.forEach((row, user) => {
        for (const operand of new Set(row[OPERANDS])) users.set(operand, [...(users.get(operand) || []), user]);
      });
    }
    return users.get(number) || [];
  };
  const fact = (list, label, ...content) => {
    const entry = make("li");
    entry.append(make("span", label, "label"), " ", ...content);
    list.append(entry);
  };
  const links = (numbers) => {
    const found = [];
    for (const number of numbers.slice(0, MOST_LINKS)) found.push(link(number, "%" + rows[number][NAME]), " ");
    if (numbers.length > MOST_LINKS) found.push("and " + (numbers.length - MOST_LINKS) + " more");
    return found;
  };
  const code = (number) => {
    const found = make("pre", undefined, "hlo");
    found.tabIndex = 0;
    for (let near = number - CONTEXT; near <= number + CONTEXT; near++) {
      if (!rows[near] || rows[near][HOME] !== rows[number][HOME]) continue;
      const line = make(near === number ? "mark" : "span");
      const known = new Map(rows[near][OPERANDS].map((operand) => ["%" + rows[operand][NAME], operand]));
      for (const part of rows[near][LINE].split(/(%[\w.\-]+)/)) line.append(known.has(part) ? link(known.get(part), part) : part);
      found.append(line, "\n");
    }
    return found;
  };
  const select = (number) => {
    const row = rows[number];
    current = number;
    const title = make("h3", "%" + row[NAME]);
    const list = make("ul", undefined, "facts");
    fact(list, "opcode", row[OPCODE]);
    fact(list, "shape", row[SHAPE]);
    fact(list, "computation", computations[row[HOME]]);
    columns.forEach((column, place) => fact(list, column.label, figureText(row[FIGURES + place])));
    if (row[OP_NAME]) fact(list, "op_name", row[OP_NAME]);
    if (row[SOURCE]) fact(list, "source", row[SOURCE]);
    if (row[OPERANDS].length) fact(list, "operands", ...links([...new Set(row[OPERANDS])]));
    if (usersOf(number).length) fact(list, "users", ...links(usersOf(number)));
    selected.replaceChildren(title, list, code(number));
    selected.hidden = false;
    draw(true);
  };

  const byAnchor = new Map(rows.map((row, number) => [computations[row[HOME]] + "/" + row[NAME], number]));
  const follow = () => {
    let name = location.hash.slice(1);
    try { name = decodeURIComponent(name); } catch { /* it is no address of ours */ }
    const number = byAnchor.get(name);
    if (number === undefined) return;
    select(number);
    if (rows[number][RANK]) {
      // It has a place of its own, where the browser goes by itself; only the keyboard has to follow.
      const place = byId(location.hash.slice(1));
      if (place) place.focus({ preventScroll: true });
      return;
    }
    selected.scrollIntoView({ block: "nearest" });
    selected.focus({ preventScroll: true });
  };
  addEventListener("hashchange", follow);
  filter();
  follow();
})();
