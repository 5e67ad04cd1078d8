//! Draws a view into cells.
//!
//! # What must hold
//!
//! - Drawing fits any size: panes without enough room are left out, and no size causes a panic.

mod panes;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Paragraph, Row, Table, Widget as _};

use super::server::Server;
use super::style::{DIM, HEAD, frame, speed};
use super::view::View;
use crate::quantity;

/// The width from which two panes stand side by side.
const WIDE: u16 = 100;
/// Rows that the time lines take, with their frame.
const HISTORY_LINES: u16 = 6;

/// The keys and their effects.
const KEYS: [(&str, &str); 8] = [
    ("q", "quit"),
    ("j k ↓ ↑", "select a mount"),
    ("s", "next order of the list"),
    ("r", "reverse the order"),
    ("space", "freeze, and go on"),
    ("w", "write a picture and the figures to files"),
    ("+ -", "look less and more often"),
    ("?", "show and hide the keys"),
];

/// Draws everything.
pub fn all(view: &View, area: Rect, cells: &mut Buffer) {
    let listed = view.servers().len().clamp(1, usize::from(area.height / 4).max(1)) as u16;
    let lines = [
        Constraint::Length(1),
        Constraint::Length(listed + 1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [head, list, rest, foot] = Layout::vertical(lines).areas(area);
    draw_head(view, head, cells);
    draw_list(view, list, cells);
    if let Some(server) = view.selected().and_then(|at| view.servers().get(at)) {
        draw_server(server, rest, cells);
    } else {
        let text = "Nothing is mounted or served by this user. `buttress mount IMG DIR` mounts.";
        Paragraph::new(text).style(DIM).render(rest, cells);
    }
    draw_foot(view, foot, cells);
    if view.shows_keys() {
        draw_keys(area, cells);
    }
}

fn draw_head(view: &View, area: Rect, cells: &mut Buffer) {
    let count = view.servers().len();
    let what = if count == 1 { "mount or server" } else { "mounts and servers" };
    let mut head = vec![
        Span::styled("buttress top", HEAD),
        Span::raw(format!("  {count} {what}, every {} s", view.delay())),
        Span::styled(format!("  by {}", view.order().name()), DIM),
    ];
    if view.is_frozen() {
        head.push(Span::raw("  "));
        head.push(Span::raw(" FROZEN ").black().on_yellow());
    }
    Line::from(head).render(area, cells);
}

fn draw_list(view: &View, area: Rect, cells: &mut Buffer) {
    let numbers = ["REQ/S", "READ/S", "WRITE/S", "DIRTY", "USED", "WAIT", "COMMIT/S", "MEMORY"];
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let head = std::iter::once(Cell::from("MOUNT"));
    let head = head.chain(numbers.into_iter().map(|name| right(name.to_owned())));
    let selected = view.selected().unwrap_or(0);
    // The selected server is always among the shown servers.
    let room = usize::from(area.height.saturating_sub(1)).max(1);
    let skipped = (selected + 1).saturating_sub(room);
    let rows = view.servers().iter().enumerate().skip(skipped).map(|(at, server)| {
        let values = [
            quantity::count(server.request_speed().round() as u64),
            speed(server.read_speed()),
            speed(server.write_speed()),
            quantity::bytes(server.figure("space", "dirty_bytes")),
            format!("{:.1} %", server.fullness() * 100.0),
            quantity::count(server.waiting()),
            format!("{:.1}", server.speed("space", "commits")),
            quantity::bytes(server.figure("memory", "resident_bytes")),
        ];
        let row = Row::new(
            std::iter::once(Cell::from(server.name())).chain(values.into_iter().map(right)),
        );
        if at == selected { row.style(Style::new().reversed()) } else { row }
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(11),
    ];
    Table::new(rows, widths).header(Row::new(head).style(HEAD)).render(area, cells);
}

fn draw_server(server: &Server, area: Rect, cells: &mut Buffer) {
    let lines = [Constraint::Fill(1), Constraint::Length(HISTORY_LINES)];
    let [panes, history] = Layout::vertical(lines).areas(area);
    panes::history(server, history, cells);
    let space = panes::space_lines(server);
    let memory = panes::memory_lines(server);
    if area.width < WIDE {
        let lines = [
            Constraint::Length(panes::thread_lines(server)),
            Constraint::Length(space),
            Constraint::Length(memory),
            Constraint::Fill(1),
        ];
        let [threads, top, middle, rest] = Layout::vertical(lines).areas(panes);
        panes::threads(server, threads, cells);
        panes::space(server, top, cells);
        panes::memory(server, middle, cells);
        panes::requests(server, rest, cells);
        return;
    }
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(panes);
    let [requests, waits] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(8)]).areas(left);
    panes::requests(server, requests, cells);
    panes::waits(server, waits, cells);
    let lines = [Constraint::Length(space), Constraint::Length(memory), Constraint::Fill(1)];
    let [top, middle, rest] = Layout::vertical(lines).areas(right);
    panes::space(server, top, cells);
    panes::memory(server, middle, cells);
    panes::threads(server, rest, cells);
}

fn draw_foot(view: &View, area: Rect, cells: &mut Buffer) {
    if let Some(message) = view.message() {
        Line::from(message).yellow().render(area, cells);
        return;
    }
    let keys = [("q", "quit"), ("s", "sort"), ("space", "freeze"), ("w", "write"), ("?", "keys")];
    let spans = keys.into_iter().flat_map(|(key, what)| {
        [Span::raw(format!(" {key} ")).reversed(), Span::raw(format!(" {what}  "))]
    });
    Line::from_iter(spans).render(area, cells);
}

fn draw_keys(area: Rect, cells: &mut Buffer) {
    let (width, height) = (56.min(area.width), (KEYS.len() as u16 + 2).min(area.height));
    let x = area.x + (area.width - width) / 2;
    let y = area.y + (area.height - height) / 2;
    let area = Rect { x, y, width, height };
    Clear.render(area, cells);
    let lines = KEYS.iter().map(|(key, what)| {
        Line::from(vec![Span::styled(format!(" {key:<9}"), HEAD), Span::raw(*what)])
    });
    Paragraph::new(lines.collect::<Vec<_>>()).block(frame("Keys")).render(area, cells);
}
