//! One mount or server: its figures now and before, and their speed.
//!
//! # What must hold
//!
//! - A figure that a server does not report counts as zero.
//! - A counter that became smaller belongs to a new server, and its speed is zero.

use std::collections::VecDeque;

use serde_json::Value;

use buttress_control::live::{Answer, Section};

/// Samples that are kept for the time lines.
pub(crate) const KEPT: usize = 512;

/// Speeds at one moment, for the time lines.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Point {
    /// Bytes that programs read a second.
    pub(crate) read: u64,
    /// Bytes that programs wrote a second.
    pub(crate) written: u64,
    /// Requests a second.
    pub(crate) requests: u64,
    /// Commits since the point before.
    pub(crate) commits: u64,
}

/// One mount or server.
pub struct Server {
    now: Answer,
    /// The previous answer, and the seconds between the two answers.
    before: Option<(Answer, f64)>,
    history: VecDeque<Point>,
}

/// The speed and the duration of one kind of request.
#[derive(Debug, PartialEq)]
pub(crate) struct Requests {
    pub(crate) kind: String,
    /// Requests a second.
    pub(crate) speed: f64,
    /// Bytes a second.
    pub(crate) bytes: f64,
    /// The mean time of the last answers in microseconds.
    pub(crate) mean_us: u64,
    /// The 99th percentile of the times of all answers to this kind of request, in microseconds.
    pub(crate) p99_us: u64,
    pub(crate) max_us: u64,
}

impl Server {
    pub(crate) fn new(now: Answer) -> Self {
        Self { now, before: None, history: VecDeque::new() }
    }

    /// Takes the next answer of the same process, `seconds` after the last one.
    pub(crate) fn take(&mut self, next: Answer, seconds: f64) {
        self.before = Some((std::mem::replace(&mut self.now, next), seconds));
        if self.history.len() == KEPT {
            self.history.pop_front();
        }
        let point = Point {
            read: self.read_speed() as u64,
            written: self.write_speed() as u64,
            requests: self.request_speed() as u64,
            commits: self.grown("space", "commits"),
        };
        self.history.push_back(point);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.now.pid
    }

    /// Returns the last answer, with all figures.
    pub fn answer(&self) -> &Answer {
        &self.now
    }

    pub(crate) fn history(&self) -> &VecDeque<Point> {
        &self.history
    }

    /// The mount point, the first address, or the image.
    pub(crate) fn name(&self) -> String {
        let subject = &self.now.subject;
        match (&subject.target, subject.uris.first()) {
            (Some(target), _) => target.display().to_string(),
            (None, Some(uri)) => uri.clone(),
            (None, None) => subject.image.display().to_string(),
        }
    }

    /// The figures of a section, in their order.
    pub(crate) fn figures(&self, section: &str) -> &[(String, Value)] {
        of(&self.now, section).map_or(&[], |section| &section.figures)
    }

    /// A figure now.
    pub(crate) fn figure(&self, section: &str, name: &str) -> u64 {
        figure(&self.now, section, name).unwrap_or(0)
    }

    /// A part of a figure now.
    pub(crate) fn part(&self, section: &str, name: &str, part: &str) -> u64 {
        part_of(&self.now, section, name, part).unwrap_or(0)
    }

    /// The growth of a counter between the two answers.
    pub(crate) fn grown(&self, section: &str, name: &str) -> u64 {
        let before = self.before.as_ref().map(|(before, _)| before);
        let before = before.and_then(|before| figure(before, section, name));
        before.map_or(0, |before| self.figure(section, name).saturating_sub(before))
    }

    /// The growth of a part of a figure. A part that is new grew from zero.
    pub(crate) fn part_grown(&self, section: &str, name: &str, part: &str) -> u64 {
        let Some((before, _)) = &self.before else { return 0 };
        let before = part_of(before, section, name, part).unwrap_or(0);
        self.part(section, name, part).saturating_sub(before)
    }

    fn seconds(&self) -> f64 {
        self.before.as_ref().map_or(f64::INFINITY, |(_, seconds)| seconds.max(1e-3))
    }

    /// The growth of a counter a second.
    pub(crate) fn speed(&self, section: &str, name: &str) -> f64 {
        self.grown(section, name) as f64 / self.seconds()
    }

    /// Bytes a second that programs read. If requests are not counted, this is the speed of reads
    /// from the devices.
    pub(crate) fn read_speed(&self) -> f64 {
        match self.figures("latency") {
            [] => self.speed("devices", "read_bytes"),
            _ => self.part_grown("latency", "read", "bytes") as f64 / self.seconds(),
        }
    }

    /// Bytes a second that programs write. If requests are not counted, this is the speed of writes
    /// to the devices.
    pub(crate) fn write_speed(&self) -> f64 {
        match self.figures("latency") {
            [] => self.speed("devices", "write_bytes"),
            _ => self.part_grown("latency", "write", "bytes") as f64 / self.seconds(),
        }
    }

    /// Requests a second of all kinds. If requests of programs are not counted, this is the speed
    /// of requests to the devices.
    pub(crate) fn request_speed(&self) -> f64 {
        let counted = self.figures("requests");
        if counted.is_empty() {
            return self.speed("devices", "reads") + self.speed("devices", "writes");
        }
        counted.iter().map(|(name, _)| self.speed("requests", name)).sum()
    }

    /// Requests that wait for space now.
    pub(crate) fn waiting(&self) -> u64 {
        self.figure("space", "waiting_for_data") + self.figure("space", "waiting_for_metadata")
    }

    /// The share of the volume in use, from 0 to 1.
    pub(crate) fn fullness(&self) -> f64 {
        let sum = |what: &str| {
            let of = |kind: &str| self.figure("space", &format!("{kind}_{what}_bytes"));
            of("data") + of("metadata") + of("system")
        };
        let all = sum("total") + self.figure("space", "unallocated_bytes");
        if all == 0 { 0.0 } else { sum("used") as f64 / all as f64 }
    }

    /// The kinds of requests that were answered. Kinds that took the most time lately come first.
    pub(crate) fn requests(&self) -> Vec<Requests> {
        let mut all: Vec<(u64, Requests)> = Vec::new();
        for (kind, _) in self.figures("latency") {
            let grown = |part: &str| self.part_grown("latency", kind, part);
            let (answers, time) = (grown("times"), grown("total_us"));
            let requests = Requests {
                kind: kind.clone(),
                speed: answers as f64 / self.seconds(),
                bytes: grown("bytes") as f64 / self.seconds(),
                mean_us: time.checked_div(answers).unwrap_or(0),
                p99_us: self.part("latency", kind, "p99_us"),
                max_us: self.part("latency", kind, "max_us"),
            };
            all.push((time, requests));
        }
        all.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        all.into_iter().map(|(_, requests)| requests).collect()
    }
}

fn of<'a>(answer: &'a Answer, section: &str) -> Option<&'a Section> {
    answer.sections.iter().find(|known| known.name == section)
}

fn value<'a>(answer: &'a Answer, section: &str, name: &str) -> Option<&'a Value> {
    let (_, value) = of(answer, section)?.figures.iter().find(|(known, _)| known == name)?;
    Some(value)
}

fn figure(answer: &Answer, section: &str, name: &str) -> Option<u64> {
    value(answer, section, name)?.as_u64()
}

fn part_of(answer: &Answer, section: &str, name: &str, part: &str) -> Option<u64> {
    value(answer, section, name)?.get(part)?.as_u64()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(reads: u64, commits: u64) -> Answer {
        serde_json::from_value(json!({
            "pid": 7,
            "subject": { "image": "/a", "target": "/mnt" },
            "sections": [
                { "name": "requests", "figures": [["read", reads]] },
                { "name": "latency", "figures": [
                    ["read", { "times": reads, "bytes": reads * 4096, "total_us": reads * 10,
                               "p99_us": 64, "max_us": 90 }],
                ] },
                { "name": "space", "figures": [["commits", commits]] },
            ],
        }))
        .expect("an answer")
    }

    #[test]
    fn speeds_are_differences_over_time() {
        let mut server = Server::new(answer(10, 1));
        assert_eq!(server.request_speed(), 0.0);
        server.take(answer(30, 3), 2.0);
        assert_eq!(server.name(), "/mnt");
        assert_eq!(server.request_speed(), 10.0);
        assert_eq!(server.read_speed(), 40_960.0);
        assert_eq!(server.history().back().expect("a point").commits, 2);
        let requests = server.requests();
        assert_eq!(requests[0].mean_us, 10);
        assert_eq!(requests[0].p99_us, 64);
    }

    /// A counter that decreased belongs to another process.
    #[test]
    fn a_counter_that_fell_has_no_speed() {
        let mut server = Server::new(answer(10, 1));
        server.take(answer(3, 0), 1.0);
        assert_eq!(server.request_speed(), 0.0);
        assert_eq!(server.write_speed(), 0.0);
    }
}
