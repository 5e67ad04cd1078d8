//! The panes of one server: requests, waits, space, memory, threads, and time lines.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, Widget as _, Wrap};
use serde_json::Value;

use crate::quantity;
use crate::screen::server::{Point, Server};
use crate::screen::style::{DIM, frame, speed};

/// The kinds of space.
const KINDS: [&str; 3] = ["data", "metadata", "system"];
/// The parts of memory that have a limit.
const PARTS: [(&str, &str); 4] = [
    ("nodes", "tree nodes"),
    ("dirty", "dirty data"),
    ("changes", "changes"),
    ("known_inodes", "inodes"),
];

/// Columns of a number.
const NUMBER: u16 = 9;
/// Width of the column of names: the longest name of a row.
const NAME: u16 = 15;
/// Width of the longest cause of a wait.
const CAUSE: u16 = 14;
/// Columns before a bar, and behind it.
const LABEL: u16 = 11;
const BEHIND: u16 = 26;

/// A part of a bar.
struct Part {
    amount: u64,
    mark: char,
    colour: Color,
}

/// A table: a first column of names, then numbers.
fn table<const N: usize>(heads: [&str; N], rows: Vec<(String, [String; N])>) -> Table<'static> {
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let head = std::iter::once(Cell::from("")).chain(heads.map(|name| right(name.to_owned())));
    let rows = rows
        .into_iter()
        .map(|(name, values)| Row::new(std::iter::once(Cell::from(name)).chain(values.map(right))));
    let widths = std::iter::once(Constraint::Min(NAME)).chain([Constraint::Length(NUMBER); N]);
    Table::new(rows, widths).header(Row::new(head).style(DIM))
}

/// The kinds of requests. Kinds that took the most time lately come first.
pub(super) fn requests(server: &Server, area: Rect, cells: &mut Buffer) {
    let rows = server.requests().into_iter().map(|requests| {
        let values = [
            quantity::count(requests.speed.round() as u64),
            time(requests.mean_us),
            time(requests.p99_us),
            time(requests.max_us),
            speed(requests.bytes),
        ];
        (requests.kind.replace('_', " "), values)
    });
    let heads = ["/s", "mean", "p99", "longest", "bytes/s"];
    table(heads, rows.collect()).block(frame("Requests")).render(area, cells);
}

/// Waits for space: how many requests wait now, and how long they waited.
pub(super) fn waits(server: &Server, area: Rect, cells: &mut Buffer) {
    let now = |kind: &str| {
        let requests = server.figure("space", &format!("waiting_for_{kind}"));
        let bytes = server.figure("space", &format!("waiting_for_{kind}_bytes"));
        format!("{} ({})", quantity::count(requests), quantity::bytes(bytes))
    };
    let line = format!("now: {} for data, {} for metadata", now("data"), now("metadata"));
    let block = frame("Waits for space");
    let inner = block.inner(area);
    block.render(area, cells);
    let [first, rest] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(inner);
    Line::from(line).render(first, cells);
    let rows = server.figures("waits").iter().map(|(name, _)| {
        let part = |part: &str| server.part("waits", name, part);
        let values = [
            quantity::count(part("times")),
            quantity::count(server.part_grown("waits", name, "times")),
            time(part("p50_us")),
            time(part("p999_us")),
            time(part("max_us")),
        ];
        (name.replace('_', " "), values)
    });
    let heads = ["waits", "new", "p50", "p99.9", "longest"];
    table(heads, rows.collect()).render(rest, cells);
}

/// The lines of the pane of space, with its frame.
pub(super) fn space_lines(server: &Server) -> u16 {
    if server.figures("space").is_empty() { 0 } else { KINDS.len() as u16 + 4 }
}

/// The accounts of space as bars.
pub(super) fn space(server: &Server, area: Rect, cells: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    let block = frame("Space");
    let width = block.inner(area).width;
    let figure = |name: &str| server.figure("space", name);
    let mut lines: Vec<Line<'_>> = KINDS
        .iter()
        .map(|kind| {
            let of = |what: &str| figure(&format!("{kind}_{what}_bytes"));
            let parts = [
                Part { amount: of("used"), mark: '█', colour: Color::Green },
                Part { amount: of("reserved"), mark: '█', colour: Color::Blue },
                Part { amount: of("pinned"), mark: '▓', colour: Color::Magenta },
                Part { amount: of("may_use"), mark: '▒', colour: Color::Yellow },
                Part { amount: of("read_only"), mark: '▓', colour: Color::Red },
            ];
            let behind =
                format!("{} of {}", quantity::bytes(of("used")), quantity::bytes(of("total")));
            bar(width, kind, &parts, of("total"), behind)
        })
        .collect();
    let legend = [
        ("█ used ", Color::Green),
        ("█ allocated ", Color::Blue),
        ("▓ pinned ", Color::Magenta),
        ("▒ reserved ", Color::Yellow),
        ("▓ read-only", Color::Red),
    ];
    lines.push(Line::from_iter(
        legend.map(|(text, colour)| Span::styled(text, Style::new().fg(colour))),
    ));
    let unallocated = quantity::bytes(figure("unallocated_bytes"));
    let reserve = quantity::bytes(figure("global_reserve_bytes"));
    lines.push(Line::styled(format!("{unallocated} unallocated, {reserve} global reserve"), DIM));
    Paragraph::new(lines).block(block).render(area, cells);
}

/// The lines of the pane of memory, with its frame.
pub(super) fn memory_lines(server: &Server) -> u16 {
    let caches = cache_lines(server).len() as u16;
    if server.figures("memory").is_empty() { 0 } else { PARTS.len() as u16 + 3 + caches }
}

/// The parts of memory against their limits.
pub(super) fn memory(server: &Server, area: Rect, cells: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    let block = frame("Memory");
    let width = block.inner(area).width;
    let figure = |name: &str| server.figure("memory", name);
    let mut lines: Vec<Line<'_>> = PARTS
        .iter()
        .map(|(part, label)| {
            let (now, most) =
                (figure(&format!("{part}_bytes")), figure(&format!("{part}_max_bytes")));
            let parts = [Part { amount: now, mark: '█', colour: Color::Cyan }];
            let behind = format!("{} of {}", quantity::bytes(now), quantity::bytes(most));
            bar(width, label, &parts, most, behind)
        })
        .collect();
    lines.extend(cache_lines(server).into_iter().map(Line::from));
    let resident = quantity::bytes(figure("resident_bytes"));
    lines.push(Line::styled(format!("{resident} resident"), DIM));
    Paragraph::new(lines).block(block).render(area, cells);
}

/// How often each cache of the server had what was looked up.
fn cache_lines(server: &Server) -> Vec<String> {
    let figure = |section: &str, name: &str| server.figure(section, name);
    let mut lines = vec![hits(server, "node cache", "memory", "node_hits", "node_misses")];
    if figure("memory", "pages_max_bytes") > 0 {
        lines.push(hits(server, "page cache", "memory", "page_hits", "page_misses"));
    }
    if !server.figures("store").is_empty() {
        lines.push(hits(server, "read from store", "store", "cached_hits", "cached_misses"));
        let (found, of) = (figure("store", "disk_hits"), figure("store", "cached_misses"));
        if figure("store", "disk_bytes") > 0 {
            let (share, bytes) = (share(found, of), quantity::bytes(figure("store", "disk_bytes")));
            lines.push(format!("its local disk: {share} of the other lookups hit, {bytes}"));
        }
    }
    if !server.figures("cache").is_empty() {
        let cache = |name: &str| figure("cache", name);
        let writes = cache("hits_uncommitted") + cache("hits_committed");
        lines.push(format!(
            "cache disk: {} of reads and {} of writes hit, {} dirty",
            share(cache("read_hits"), cache("reads")),
            share(writes, cache("writes")),
            quantity::bytes(cache("dirty_bytes")),
        ));
    }
    lines
}

/// A share in percent. A dash if there is nothing of which it could be a share.
fn share(part: u64, of: u64) -> String {
    match of {
        0 => "-".to_owned(),
        of => format!("{:.1} %", part as f64 * 100.0 / of as f64),
    }
}

/// How often a cache had what was looked up: since the last answer, and always.
fn hits(server: &Server, cache: &str, section: &str, hits: &str, misses: &str) -> String {
    let now = |name: &str| server.grown(section, name);
    let ever = |name: &str| server.figure(section, name);
    let of_now = now(hits).saturating_add(now(misses));
    format!(
        "{cache}: {} of {} lookups hit, {} of all",
        share(now(hits), of_now),
        quantity::count(of_now),
        share(ever(hits), ever(hits).saturating_add(ever(misses))),
    )
}

/// Lines of the pane of threads for the pools, and for its frame and heads.
const POOL_LINES: u16 = 2;
const AROUND: u16 = POOL_LINES + 3;
/// Waiters that are shown on a narrow screen.
const FEW: usize = 5;

/// The lines of the pane of threads on a narrow screen, with its frame.
pub(super) fn thread_lines(server: &Server) -> u16 {
    match server.figures("waiters").len() {
        0 => 0,
        count => count.min(FEW) as u16 + AROUND,
    }
}

/// The pools of threads, and what takes long: the longest waits first.
pub(super) fn threads(server: &Server, area: Rect, cells: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    let block = frame("Threads");
    let inner = block.inner(area);
    block.render(area, cells);
    let lines = [Constraint::Length(POOL_LINES), Constraint::Fill(1)];
    let [first, rest] = Layout::vertical(lines).areas(inner);
    let wrap = Wrap { trim: true };
    Paragraph::new(pools(server)).wrap(wrap).render(first, cells);
    let waiters = server.figures("waiters");
    if waiters.is_empty() {
        return Line::styled("no request takes long", DIM).render(rest, cells);
    }
    let rows: Vec<[String; 4]> = waiters.iter().map(|(_, waiter)| waiter_cells(waiter)).collect();
    let inode = rows.iter().map(|[_, inode, ..]| inode.len()).max().unwrap_or(0).max(NUMBER.into());
    let cells_of = |[name, inode, cause, time]: [String; 4]| {
        let right = |text: String| Cell::from(Line::from(text).right_aligned());
        Row::new([Cell::from(name), right(inode), Cell::from(cause), right(time)])
    };
    let head = ["request", "inode", "waits for", "time"].map(str::to_owned);
    let widths = [
        Constraint::Min(NAME),
        Constraint::Length(inode as u16),
        Constraint::Length(CAUSE),
        Constraint::Length(NUMBER),
    ];
    let table = Table::new(rows.into_iter().map(cells_of), widths);
    table.header(cells_of(head).style(DIM)).render(rest, cells);
}

/// How many threads of each pool are busy. Pools with the most busy threads come first.
fn pools(server: &Server) -> String {
    let of = |name: &str, part: &str| server.part("pools", name, part);
    let mut pools: Vec<_> = server.figures("pools").iter().map(|(name, _)| name).collect();
    pools.sort_by_key(|name| std::cmp::Reverse((of(name, "busy"), of(name, "threads"))));
    let pool = |name: &String| {
        let short = name.strip_prefix("buttress-").unwrap_or(name);
        // A pool is not divided between two lines.
        format!("{short}\u{a0}{}/{}", of(name, "busy"), of(name, "threads"))
    };
    let pools: Vec<_> = pools.into_iter().map(pool).collect();
    format!("busy: {}", pools.join(" "))
}

/// What a thread does: its operation or its own name, the inode, the cause of its wait, and the
/// time that it has waited. A thread that does not wait has the time since its request came.
fn waiter_cells(waiter: &Value) -> [String; 4] {
    let text = |name: &str| waiter.get(name).and_then(Value::as_str);
    let number = |name: &str| waiter.get(name).and_then(Value::as_u64);
    let name = text("operation").or(text("thread")).unwrap_or("-").replace('_', " ");
    let inode = number("inode").map_or("-".to_owned(), |inode| inode.to_string());
    let cause = text("waits_for").unwrap_or("-").replace('_', " ");
    let ms = number("waiting_ms").or(number("since_ms")).unwrap_or(0);
    [name, inode, cause, quantity::duration(ms.saturating_mul(1000))]
}

/// Reads, writes, requests and commits over time, the newest at the right.
pub(super) fn history(server: &Server, area: Rect, cells: &mut Buffer) {
    let areas: [Rect; 4] = Layout::horizontal([Constraint::Fill(1); 4]).areas(area);
    let of =
        |figure: fn(&Point) -> u64| -> Vec<u64> { server.history().iter().map(figure).collect() };
    let bytes = |most: u64| format!("{}/s", quantity::bytes(most));
    let commit = match server.figure("space", "commit_us") {
        0 => String::new(),
        us => format!(", last {}", quantity::duration(us)),
    };
    let reads = of(|point| point.read);
    line("Read", &reads, Color::Green, bytes, areas[0], cells);
    let writes = of(|point| point.written);
    line("Write", &writes, Color::Yellow, bytes, areas[1], cells);
    let each = |most: u64| format!("{}/s", quantity::count(most));
    line("Requests", &of(|point| point.requests), Color::Cyan, each, areas[2], cells);
    let each = |most: u64| format!("{}{commit}", quantity::count(most));
    line("Commits", &of(|point| point.commits), Color::Magenta, each, areas[3], cells);
}

/// Draws one time line. `text` formats the highest of the drawn values.
fn line(
    title: &str,
    points: &[u64],
    colour: Color,
    text: impl Fn(u64) -> String,
    area: Rect,
    cells: &mut Buffer,
) {
    let block = frame(title);
    let inner = block.inner(area);
    let shown = &points[points.len().saturating_sub(usize::from(inner.width))..];
    let most = shown.iter().copied().max().unwrap_or(0);
    let top = Line::styled(format!(" to {} ", text(most)), DIM).right_aligned();
    block.title(top).render(area, cells);
    // The newest point stands at the right edge from the beginning.
    let empty = usize::from(inner.width).saturating_sub(shown.len());
    let data = std::iter::repeat_n(0, empty).chain(shown.iter().copied());
    let style = Style::new().fg(colour);
    Sparkline::default().data(data).max(most.max(1)).style(style).render(inner, cells);
}

/// A label, a bar of parts of `total`, and a text behind it.
fn bar<'l>(width: u16, label: &str, parts: &[Part], total: u64, behind: String) -> Line<'l> {
    let cells = usize::from(width.saturating_sub(LABEL + BEHIND));
    let mut spans = vec![Span::raw(format!("{label:<width$}", width = usize::from(LABEL)))];
    let mut left = cells;
    for (part, len) in parts.iter().zip(lengths(parts, total, cells)) {
        let text = std::iter::repeat_n(part.mark, len).collect::<String>();
        spans.push(Span::styled(text, Style::new().fg(part.colour)));
        left -= len;
    }
    spans.push(Span::styled("·".repeat(left), DIM));
    spans.push(Span::raw(format!("{behind:>width$}", width = usize::from(BEHIND))));
    Line::from(spans)
}

/// The number of cells of each part. A part that is not zero gets at least one cell, as long as
/// cells are left.
fn lengths(parts: &[Part], total: u64, cells: usize) -> Vec<usize> {
    let mut left = cells;
    let length = |part: &Part| {
        let share = u128::from(part.amount) * cells as u128 / u128::from(total.max(1));
        let wanted = (share as usize).max(usize::from(part.amount > 0));
        let length = wanted.min(left);
        left -= length;
        length
    };
    parts.iter().map(length).collect()
}

/// Returns the text of a time. The text of zero is a dash.
fn time(us: u64) -> String {
    if us == 0 { "-".to_owned() } else { quantity::duration(us) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::screen::text;

    /// Threads that wait, in their order, with the pools before them: on a screen with room, and on
    /// one without.
    #[test]
    fn threads_that_wait_are_drawn() {
        let answer = |waiters: Value| {
            let answer = json!({
                "pid": 7,
                "subject": { "image": "/a" },
                "sections": [
                    { "name": "pools", "figures": [
                        ["buttress-flush", { "threads": 4, "busy": 0, "waiting": 0 }],
                        ["fuse", { "threads": 8, "busy": 2, "waiting": 1 }],
                    ] },
                    { "name": "waiters", "figures": waiters },
                ],
            });
            Server::new(serde_json::from_value(answer).expect("an answer"))
        };
        let waiting = answer(json!([
            ["0", { "thread": "fuse-1", "operation": "copy_file_range", "inode": 257,
                    "since_ms": 1500, "waits_for": "device_discard", "waiting_ms": 1200 }],
            ["1", { "thread": "buttress-commit", "operation": null, "inode": null,
                    "since_ms": 90, "waits_for": "file_lock", "waiting_ms": 80 }],
            ["2", { "thread": "fuse-2", "operation": "read", "inode": u64::MAX,
                    "since_ms": 70, "waits_for": null, "waiting_ms": null }],
        ]));
        assert_eq!(thread_lines(&waiting), 3 + AROUND);
        let drawn = |server: &Server, width, height| {
            let mut cells = Buffer::empty(Rect::new(0, 0, width, height));
            threads(server, cells.area, &mut cells);
            text(&cells).replace('\u{a0}', " ")
        };
        let wide = drawn(&waiting, 70, 8);
        // The border stands beside the words.
        let words_of = |line| {
            let parts = str::split(line, |c: char| c.is_whitespace() || c == '│');
            parts.filter(|part| !part.is_empty()).collect()
        };
        let words: Vec<Vec<&str>> = wide.lines().map(words_of).collect();
        assert_eq!(words[1][..5], ["busy:", "fuse", "2/8", "flush", "0/4"], "{wide}");
        let first = ["copy", "file", "range", "257", "device", "discard", "1.20", "s"];
        assert_eq!(words[4][..8], first, "{wide}");
        assert_eq!(words[5][..6], ["buttress-commit", "-", "file", "lock", "80.0", "ms"], "{wide}");
        let last = ["read", "18446744073709551615", "-", "70.0", "ms"];
        assert_eq!(words[6][..5], last, "{wide}");
        for (width, height) in [(20, 4), (3, 2), (1, 1)] {
            drawn(&waiting, width, height);
        }
        let idle = answer(json!([]));
        assert_eq!(thread_lines(&idle), 0);
        assert!(drawn(&idle, 70, 8).contains("no request takes long"));
    }

    #[test]
    fn small_parts_are_seen() {
        let part = |amount| Part { amount, mark: '█', colour: Color::Green };
        let of = |amounts: &[u64], total, cells| {
            let parts: Vec<_> = amounts.iter().copied().map(part).collect();
            lengths(&parts, total, cells)
        };
        assert_eq!(of(&[50, 1, 0], 100, 10), [5, 1, 0]);
        assert_eq!(of(&[100, 1], 100, 10), [10, 0]);
        assert_eq!(of(&[1, 1], 0, 3), [3, 0]);
        assert_eq!(of(&[u64::MAX, 1], u64::MAX, 4), [4, 0]);
    }
}
