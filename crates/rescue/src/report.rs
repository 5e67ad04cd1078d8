//! The result for each file.

use serde::Serialize;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A file with content.
    File,
    /// A folder.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device file, a pipe or a socket.
    Special,
    /// A subvolume.
    Subvolume,
    /// The inode is lost, and no other item tells its kind.
    Unknown,
}

/// How much of a file could be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// The whole file, verified where it has checksums.
    Whole,
    /// The target folder had a file of this name before, for example from an earlier run. That file
    /// was not changed.
    Exists,
    /// The entry was left out: a snapshot, or a folder or subvolume that was restored at another
    /// place already.
    Skipped,
    /// A part of the file.
    Partly,
    /// No part of the file.
    Lost,
}

/// A part of a file that is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Why the part is lost.
    pub why: String,
}

/// One file of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its path from the top of the volume, without a slash in front. In JSON it has the form of
    /// [`buttress_base::text`].
    #[serde(serialize_with = "as_text")]
    pub path: Vec<u8>,
    /// The number of its subvolume.
    pub subvolume: u64,
    /// Its number in the subvolume.
    pub inode: u64,
    /// The kind of the file.
    pub kind: Kind,
    /// How much of the file could be restored.
    pub condition: Condition,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes of content that were restored, without holes.
    pub bytes: u64,
    /// Whether some of the content has no checksums, so that it cannot be verified.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unverified: bool,
    /// The lost parts of its content.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
    /// Other problems of the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

fn as_text<S: serde::Serializer>(path: &[u8], out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&buttress_base::text::encode(path))
}

impl Entry {
    /// An entry without known problems.
    pub(crate) fn new(path: Vec<u8>, subvolume: u64, inode: u64, kind: Kind) -> Self {
        Self {
            path,
            subvolume,
            inode,
            kind,
            condition: Condition::Whole,
            size: 0,
            bytes: 0,
            unverified: false,
            lost: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Records a problem, and lowers the condition to at most `condition`.
    pub(crate) fn worsen(&mut self, condition: Condition, why: impl Into<String>) {
        self.condition = self.condition.max(condition);
        let why = why.into();
        if !self.notes.contains(&why) {
            self.notes.push(why);
        }
    }

    /// Copies the condition of the content from another name of the same file.
    pub(crate) fn copy_condition_of(&mut self, first: &Self) {
        (self.size, self.condition, self.unverified) =
            (first.size, first.condition, first.unverified);
        self.lost.clone_from(&first.lost);
        self.notes.clone_from(&first.notes);
    }

    /// Records a lost part of the content. It is joined to the preceding part if they are adjacent.
    pub(crate) fn lose(&mut self, offset: u64, len: u64, why: String) {
        self.condition = self.condition.max(Condition::Partly);
        if let Some(last) = self.lost.last_mut()
            && last.offset + last.len == offset
            && last.why == why
        {
            last.len += len;
            return;
        }
        self.lost.push(Lost { offset, len, why });
    }
}

/// Sums over all entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Entries that are whole.
    pub whole: u64,
    /// Entries of which a part could be restored.
    pub partly: u64,
    /// Entries of which no part could be restored.
    pub lost: u64,
    /// Entries that the target folder had before.
    pub exists: u64,
    /// Entries that were left out ([`Condition::Skipped`]).
    pub skipped: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Whether the work was stopped before its end.
    pub stopped: bool,
}

impl Summary {
    /// Counts one more entry.
    pub(crate) fn count(&mut self, entry: &Entry) {
        let field = match entry.condition {
            Condition::Whole => &mut self.whole,
            Condition::Exists => &mut self.exists,
            Condition::Skipped => &mut self.skipped,
            Condition::Partly => &mut self.partly,
            Condition::Lost => &mut self.lost,
        };
        *field += 1;
        self.bytes += entry.bytes;
    }
}
