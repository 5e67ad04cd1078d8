//! Figures about the places of a tree's nodes, printed as by `btrfs inspect-internal tree-stats`.

use std::time::Duration;

use buttress_format::{Body, FileExtent, Kind, TreeId};
use buttress_tree::Node;

/// The figures of one tree. Addresses are those of the volume, in bytes.
#[derive(Clone, Debug, Default)]
pub struct NodeFigures {
    /// Bytes of all nodes.
    bytes: u64,
    /// Bytes of files that lie in leaves.
    inline_bytes: u64,
    /// How often a node does not follow the previous node directly: `forward` counts higher
    /// addresses, `backward` lower addresses.
    forward: u64,
    backward: u64,
    /// Bytes between such pairs of nodes.
    seek_bytes: u64,
    /// Runs of at least two nodes side by side: their number, all their bytes, the smallest and
    /// the largest.
    clusters: u64,
    cluster_bytes: u64,
    smallest: u64,
    largest: u64,
    /// The first and the last address of a node.
    first: u64,
    last: u64,
    /// The number of nodes on each level, from the leaves.
    levels: Vec<u64>,
    /// The end of the last node, and the length of its run.
    before: Option<(u64, u64)>,
}

impl NodeFigures {
    /// The trees for which btrfs-progs print figures, with their names.
    pub const TREES: [(TreeId, &'static str); 4] = [
        (TreeId::ROOT, "root"),
        (TreeId::EXTENT, "extent"),
        (TreeId::CSUM, "csum"),
        (TreeId::FS, "fs"),
    ];

    /// Adds the next node of a walk.
    ///
    /// # Errors
    ///
    /// When an item of a file is damaged.
    pub fn add(&mut self, node: &Node) -> buttress_format::Result<()> {
        let (at, bytes) = (node.logical().0, node.bytes().len() as u64);
        self.first = if self.bytes == 0 { at } else { self.first.min(at) };
        self.last = self.last.max(at);
        self.bytes += bytes;
        let level = usize::from(node.level());
        if self.levels.len() <= level {
            self.levels.resize(level + 1, 0);
        }
        self.levels[level] += 1;
        let run = match self.before {
            Some((end, run)) if end == at => run + bytes,
            Some((end, run)) => {
                self.seek(end, at);
                self.cluster(run, bytes);
                bytes
            }
            None => bytes,
        };
        self.before = Some((at + bytes, run));
        if level == 0 {
            self.inline(node)?;
        }
        Ok(())
    }

    fn inline(&mut self, leaf: &Node) -> buttress_format::Result<()> {
        for slot in (0..leaf.len()).filter(|slot| leaf.key(*slot).kind == Kind::EXTENT_DATA) {
            if let Body::Inline(data) = FileExtent::parse(leaf.item(slot))?.body {
                self.inline_bytes += data.len() as u64;
            }
        }
        Ok(())
    }

    fn seek(&mut self, from: u64, to: u64) {
        let way = if to > from { &mut self.forward } else { &mut self.backward };
        *way += 1;
        self.seek_bytes += to.abs_diff(from);
    }

    fn cluster(&mut self, run: u64, node_bytes: u64) {
        if run > node_bytes {
            self.smallest = if self.clusters == 0 { run } else { self.smallest.min(run) };
            self.largest = self.largest.max(run);
            self.clusters += 1;
            self.cluster_bytes += run;
        }
    }

    fn seeks(&self) -> u64 {
        self.forward + self.backward
    }

    /// The lines of btrfs-progs after a walk that took this long. `show` writes a number of bytes.
    #[must_use]
    pub fn lines(mut self, took: Duration, show: impl Fn(u64) -> String) -> Vec<String> {
        if let Some((_, run)) = self.before {
            let node_bytes = self.bytes / self.levels.iter().sum::<u64>().max(1);
            self.cluster(run, node_bytes);
        }
        let mut lines = Vec::new();
        let mean = |bytes: u64, count: u64| show(bytes.checked_div(count).unwrap_or(0));
        lines.push(format!("\tTotal size: {}", show(self.bytes)));
        lines.push(format!("\t\tInline data: {}", show(self.inline_bytes)));
        lines.push(format!("\tTotal seeks: {}", self.seeks()));
        lines.push(format!("\t\tForward seeks: {}", self.forward));
        lines.push(format!("\t\tBackward seeks: {}", self.backward));
        lines.push(format!("\t\tAvg seek len: {}", mean(self.seek_bytes, self.seeks())));
        lines.push(format!("\tTotal clusters: {}", self.clusters));
        lines.push(format!("\t\tAvg cluster size: {}", mean(self.cluster_bytes, self.clusters)));
        lines.push(format!("\t\tMin cluster size: {}", show(self.smallest)));
        lines.push(format!("\t\tMax cluster size: {}", show(self.largest)));
        let spread = self.last.saturating_sub(self.first);
        lines.push(format!("\tTotal disk spread: {}", show(spread)));
        let (seconds, micros) = (took.as_secs(), took.subsec_micros());
        lines.push(format!("\tTotal read time: {seconds} s {micros} us"));
        lines.push(format!("\tLevels: {}", self.levels.len()));
        lines.push(format!("\tTotal nodes: {}", self.levels.iter().sum::<u64>()));
        for (level, nodes) in self.levels.iter().enumerate() {
            let below = level.checked_sub(1).and_then(|below| self.levels.get(below));
            let fanout = below.and_then(|below| below.checked_div(*nodes));
            let fanout = fanout.map_or(String::new(), |mean| format!("  (avg fanout {mean})"));
            lines.push(format!("\t\tOn level {level}: {nodes:>8}{fanout}"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_runs_of_two_or_more_nodes() {
        let mut figures = NodeFigures::default();
        for run in [16, 48, 32, 16] {
            figures.cluster(run, 16);
        }
        assert_eq!((figures.clusters, figures.smallest, figures.largest), (2, 32, 48));
        figures.seek(100, 300);
        figures.seek(300, 50);
        assert_eq!((figures.forward, figures.backward, figures.seek_bytes), (1, 1, 450));
    }
}
