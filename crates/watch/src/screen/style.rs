//! The styles that all panes share.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;
use ratatui::widgets::{Block, BorderType};

use crate::quantity;

/// Headings.
pub(super) const HEAD: Style = Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD);
/// Less important text.
pub(super) const DIM: Style = Style::new().fg(Color::DarkGray);

/// The frame of a pane.
pub(super) fn frame(title: &str) -> Block<'static> {
    let title = Span::styled(format!(" {title} "), HEAD);
    Block::bordered().border_type(BorderType::Rounded).border_style(DIM).title(title)
}

/// Returns the text of a number of bytes a second. The text of zero is a dash.
pub(super) fn speed(bytes: f64) -> String {
    if bytes < 0.5 { "-".to_owned() } else { quantity::bytes(bytes.round() as u64) }
}
