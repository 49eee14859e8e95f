// A table that can be sorted by its heads and exported.
import { h, clear, panel } from "./dom.js";
import { exportButtons } from "./export.js";

/** columns: {key, name, number?, wide?, tight?, cell?(row) -> node or text, value?(row)} */
export class Table {
    constructor(title, columns, { empty = "Nothing yet.", sort, descending } = {}) {
        this.title = title;
        this.columns = columns;
        this.empty = empty;
        this.sort = sort;
        this.descending = descending ?? false;
        this.rows = [];
        this.heads = columns.map((column) => h("th", { scope: "col", class: this.look(column) },
            column.fixed ? column.name : h("button", { type: "button",
                onclick: () => this.sortBy(column.key) }, column.name)));
        this.body = h("tbody");
        this.table = h("table", {}, h("thead", {}, h("tr", {}, this.heads)), this.body);
        this.note = h("p", { class: "dim", hidden: true }, empty);
        this.element = panel(title, exportButtons(title, () => this.exported()),
            h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title },
                this.table), this.note);
    }

    look(column) {
        return [column.number && "number", column.wide && "wide", column.tight && "tight"]
            .filter(Boolean).join(" ") || undefined;
    }

    value(column, row) {
        return column.value ? column.value(row) : row[column.key];
    }

    sortBy(key) {
        this.descending = this.sort === key ? !this.descending : false;
        this.sort = key;
        this.draw();
    }

    set(rows) {
        this.rows = rows;
        this.draw();
    }

    sorted() {
        const column = this.columns.find((one) => one.key === this.sort);
        if (!column)
            return this.rows;
        const sign = this.descending ? -1 : 1;
        return [...this.rows].sort((a, b) => {
            const left = this.value(column, a) ?? "", right = this.value(column, b) ?? "";
            if (typeof left === "number" && typeof right === "number")
                return sign * (left - right);
            return sign * String(left).localeCompare(String(right), "en", { numeric: true });
        });
    }

    draw() {
        this.columns.forEach((column, i) => {
            if (column.key === this.sort)
                this.heads[i].setAttribute("aria-sort",
                    this.descending ? "descending" : "ascending");
            else
                this.heads[i].removeAttribute("aria-sort");
        });
        clear(this.body, this.sorted().map((row) => h("tr", {}, this.columns.map((column) =>
            h("td", { class: this.look(column) },
                column.cell ? column.cell(row) : this.value(column, row))))));
        this.note.hidden = this.rows.length > 0;
        this.table.hidden = this.rows.length === 0;
    }

    exported() {
        return this.sorted().map((row) => Object.fromEntries(this.columns
            .filter((column) => !column.fixed)
            .map((column) => [column.key, this.value(column, row)])));
    }
}
