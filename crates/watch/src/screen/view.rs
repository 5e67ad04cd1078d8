//! The state of the screen: the servers, their order, the selected server, and the settings that
//! keys change.
//!
//! # What must hold
//!
//! - A frozen view takes no answers, so all of its figures are of one moment.
//! - The selection stays with its server while the order changes.

use std::time::Instant;

use ratatui::crossterm::event::KeyCode;

use super::server::Server;
use buttress_control::live::Answer;

/// The orders of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Requests,
    Read,
    Written,
    Waiting,
    Full,
    Name,
}

impl Order {
    const ALL: [Self; 6] =
        [Self::Requests, Self::Read, Self::Written, Self::Waiting, Self::Full, Self::Name];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Read => "reads",
            Self::Written => "writes",
            Self::Waiting => "waits",
            Self::Full => "fullness",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }
}

/// The action of the program after a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Draw the screen again, and go on.
    Go,
    /// End.
    Quit,
    /// Write the content of the screen to files.
    Save,
    /// Wait longer (`true`) or shorter between two updates.
    Pace(bool),
}

/// The state of the screen.
pub struct View {
    servers: Vec<Server>,
    selected: Option<u32>,
    order: Order,
    is_reversed: bool,
    is_frozen: bool,
    shows_keys: bool,
    /// A message until the next key.
    message: Option<String>,
    /// The message says why an update failed. The next successful update removes the message.
    has_failed: bool,
    seen: Option<Instant>,
    delay: f64,
}

impl View {
    /// Creates an empty view with `delay` seconds between two updates.
    pub fn new(delay: f64) -> Self {
        Self {
            servers: Vec::new(),
            selected: None,
            order: Order::Requests,
            is_reversed: false,
            is_frozen: false,
            shows_keys: false,
            message: None,
            has_failed: false,
            seen: None,
            delay,
        }
    }

    /// Returns the servers in the order of the list.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The index of the selected server.
    pub(crate) fn selected(&self) -> Option<usize> {
        let found = self.servers.iter().position(|server| Some(server.pid()) == self.selected);
        found.or_else(|| (!self.servers.is_empty()).then_some(0))
    }

    pub(crate) fn order(&self) -> Order {
        self.order
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    pub(crate) fn shows_keys(&self) -> bool {
        self.shows_keys
    }

    /// Returns the message at the foot of the screen.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// Returns the seconds between two updates.
    pub fn delay(&self) -> f64 {
        self.delay
    }

    /// Sets the seconds between two updates.
    pub fn set_delay(&mut self, delay: f64) {
        self.delay = delay;
    }

    /// Shows a message until the next key.
    pub fn say(&mut self, message: String) {
        self.message = Some(message);
        self.has_failed = false;
    }

    /// Shows why an update failed, until the next successful update or the next key.
    pub fn fail(&mut self, message: String) {
        self.message = Some(message);
        self.has_failed = true;
    }

    /// Takes the answers of all servers at one moment.
    pub fn take(&mut self, at: Instant, answers: Vec<Answer>) {
        if self.is_frozen {
            return;
        }
        let seconds = self.seen.map_or(0.0, |seen| at.duration_since(seen).as_secs_f64());
        self.seen = Some(at);
        self.servers.retain(|server| answers.iter().any(|answer| answer.pid == server.pid()));
        for answer in answers {
            match self.servers.iter_mut().find(|server| server.pid() == answer.pid) {
                Some(server) => server.take(answer, seconds),
                None => self.servers.push(Server::new(answer)),
            }
        }
        self.sort();
        // Store the process of the first server. Otherwise, the selection would move to another
        // server when the order of the list changes.
        if !self.servers.iter().any(|server| Some(server.pid()) == self.selected) {
            self.selected = self.servers.first().map(Server::pid);
        }
        if std::mem::take(&mut self.has_failed) {
            self.message = None;
        }
    }

    fn sort(&mut self) {
        let order = self.order;
        self.servers.sort_by(|a, b| {
            let most = |figure: fn(&Server) -> f64| figure(b).total_cmp(&figure(a));
            let first = match order {
                Order::Requests => most(Server::request_speed),
                Order::Read => most(Server::read_speed),
                Order::Written => most(Server::write_speed),
                Order::Waiting => most(|server| server.waiting() as f64),
                Order::Full => most(Server::fullness),
                Order::Name => std::cmp::Ordering::Equal,
            };
            first.then_with(|| a.name().cmp(&b.name()))
        });
        if self.is_reversed {
            self.servers.reverse();
        }
    }

    /// Carries out the request of a key.
    pub fn key(&mut self, key: KeyCode) -> Next {
        self.message = None;
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Char('w') => return Next::Save,
            KeyCode::Char('+') => return Next::Pace(true),
            KeyCode::Char('-') => return Next::Pace(false),
            KeyCode::Char(' ' | 'f') => self.is_frozen = !self.is_frozen,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('?' | 'h') => self.shows_keys = !self.shows_keys,
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            _ => return Next::Go,
        }
        self.sort();
        Next::Go
    }

    fn select(&mut self, step: isize) {
        let Some(at) = self.selected() else { return };
        let to = at.saturating_add_signed(step).min(self.servers.len() - 1);
        self.selected = Some(self.servers[to].pid());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn answer(pid: u32, name: &str, commits: u64) -> Answer {
        serde_json::from_value(json!({
            "pid": pid,
            "subject": { "image": name },
            "sections": [{ "name": "space", "figures": [["commits", commits]] }],
        }))
        .expect("an answer")
    }

    #[test]
    fn the_selection_stays_with_its_server() {
        let mut view = View::new(1.0);
        let at = Instant::now();
        view.take(at, vec![answer(1, "/b", 0), answer(2, "/a", 0)]);
        view.key(KeyCode::Down);
        let name = |view: &View| view.servers()[view.selected().expect("one")].name();
        assert_eq!(name(&view), "/b");
        view.key(KeyCode::Char('r'));
        assert_eq!(name(&view), "/b");
        view.take(at + Duration::from_secs(1), vec![answer(2, "/a", 0)]);
        assert_eq!(name(&view), "/a");
        view.take(at + Duration::from_secs(2), Vec::new());
        assert_eq!(view.selected(), None);
        view.key(KeyCode::Up);
    }

    #[test]
    fn a_frozen_view_takes_no_answers() {
        let mut view = View::new(1.0);
        let at = Instant::now();
        view.take(at, vec![answer(1, "/a", 5)]);
        view.key(KeyCode::Char(' '));
        view.take(at, vec![answer(1, "/a", 9)]);
        assert_eq!(view.servers()[0].figure("space", "commits"), 5);
        view.key(KeyCode::Char(' '));
        view.take(at, vec![answer(1, "/a", 9)]);
        assert_eq!(view.servers()[0].figure("space", "commits"), 9);
        assert_eq!(view.key(KeyCode::Char('q')), Next::Quit);
    }
}
