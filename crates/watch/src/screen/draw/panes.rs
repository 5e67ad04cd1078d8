//! The panes of one server: requests, waits, space, memory, the flusher, and time lines.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, Widget as _};

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

/// The steps of the flusher that did something.
pub(super) fn flusher(server: &Server, area: Rect, cells: &mut Buffer) {
    let steps = server.figures("flush_steps").iter();
    let rows = steps.filter(|(name, _)| server.part("flush_steps", name, "times") > 0);
    let rows = rows.map(|(name, _)| {
        let part = |part: &str| server.part("flush_steps", name, part);
        let grown = server.part_grown("flush_steps", name, "times");
        let values = [
            quantity::count(part("times")),
            quantity::count(grown),
            quantity::bytes(part("yielded_bytes")),
            quantity::count(part("served")),
        ];
        (name.replace('_', " "), values)
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        let text = Line::styled("no step was needed yet", DIM);
        Paragraph::new(text).block(frame("Flusher")).render(area, cells);
        return;
    }
    let heads = ["steps", "new", "freed", "served"];
    table(heads, rows).block(frame("Flusher")).render(area, cells);
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
    use super::*;

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
