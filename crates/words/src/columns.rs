//! Lines of `subvolume list`.

use std::cmp::Ordering;

use buttress_base::text;
use serde::Deserialize;

use crate::location::show;
use crate::when;

/// A subvolume, as the order to list subvolumes returns it.
///
/// Plain data: each field is what the volume has.
#[derive(Debug, Deserialize)]
pub struct Subvolume {
    /// Its number.
    pub id: u64,
    /// The generation of its last change.
    pub generation: u64,
    /// The number of the subvolume that it is in.
    pub top_level: u64,
    /// Its path below the top level.
    pub path: String,
    /// Its identifier.
    pub uuid: String,
    /// The identifier of the subvolume of which it is a snapshot.
    pub parent_uuid: Option<String>,
    /// The identifier of the subvolume that was sent.
    pub received_uuid: Option<String>,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// The generation in which it was created.
    pub created_generation: u64,
    /// Whether it is read-only.
    pub read_only: bool,
}

impl Subvolume {
    /// A deleted subvolume, of which only the number and the generation are left.
    pub(crate) fn deleted(id: u64, generation: u64) -> Self {
        Self {
            id,
            generation,
            top_level: 0,
            path: "DELETED".to_owned(),
            uuid: "-".to_owned(),
            parent_uuid: None,
            received_uuid: None,
            created: 0,
            created_generation: 0,
            read_only: false,
        }
    }
}

/// A field to sort by, and whether large values come first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key(Column, bool);

/// Reads a word of `--sort`.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    let column = match text.trim_start_matches(['+', '-']) {
        "gen" => Column::Generation,
        "ogen" => Column::CreatedGeneration,
        "rootid" => Column::Id,
        "path" => Column::Path,
        _ => return Err("one of gen, ogen, rootid, path".to_owned()),
    };
    Ok(Key(column, text.starts_with('-')))
}

/// Sorts subvolumes. Those that compare as equal stay in the order of their numbers.
pub(crate) fn sort(list: &mut [Subvolume], keys: &[Key]) {
    let compare = |one: &Subvolume, two: &Subvolume, Key(column, is_reverse): Key| {
        let order = match column {
            Column::Generation => one.generation.cmp(&two.generation),
            Column::CreatedGeneration => one.created_generation.cmp(&two.created_generation),
            Column::Path => one.path.cmp(&two.path),
            _ => one.id.cmp(&two.id),
        };
        if is_reverse { order.reverse() } else { order }
    };
    list.sort_by(|one, two| {
        let each = keys.iter().map(|key| compare(one, two, *key));
        each.fold(Ordering::Equal, Ordering::then)
    });
}

/// A column of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Id,
    Generation,
    CreatedGeneration,
    Parent,
    TopLevel,
    Created,
    ParentUuid,
    ReceivedUuid,
    Uuid,
    Path,
}

impl Column {
    /// Returns the label of the column: before its value in a line, and above it in a table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Id => "ID",
            Self::Generation => "gen",
            Self::CreatedGeneration => "cgen",
            Self::Parent => "parent",
            Self::TopLevel => "top level",
            Self::Created => "otime",
            Self::ParentUuid => "parent_uuid",
            Self::ReceivedUuid => "received_uuid",
            Self::Uuid => "uuid",
            Self::Path => "path",
        }
    }

    pub(crate) fn value(self, of: &Subvolume) -> String {
        let or_dash = |uuid: &Option<String>| format!("{:<36}", uuid.as_deref().unwrap_or("-"));
        match self {
            Self::Id => of.id.to_string(),
            Self::Generation => of.generation.to_string(),
            Self::CreatedGeneration => of.created_generation.to_string(),
            Self::Parent | Self::TopLevel => of.top_level.to_string(),
            Self::Created => when::date_time(of.created),
            Self::ParentUuid => or_dash(&of.parent_uuid),
            Self::ReceivedUuid => or_dash(&of.received_uuid),
            Self::Uuid => format!("{:<36}", of.uuid),
            Self::Path => show(&text::decode(&of.path).unwrap_or_default()),
        }
    }
}

/// One line for a subvolume.
pub(crate) fn line(columns: &[Column], of: &Subvolume) -> String {
    let parts = columns.iter().map(|column| format!("{} {}", column.name(), column.value(of)));
    parts.collect::<Vec<_>>().join(" ")
}

/// The two lines above a table.
pub(crate) fn head(columns: &[Column]) -> [String; 2] {
    let names: String = columns.iter().map(|column| format!("{}\t", column.name())).collect();
    let rule: String =
        columns.iter().map(|column| format!("{}\t", "-".repeat(column.name().len()))).collect();
    [names, rule]
}

/// One row of a table.
pub(crate) fn row(columns: &[Column], of: &Subvolume) -> String {
    let parts = columns.iter().map(|column| match column {
        // The heading of this column is longer than a tab is wide.
        Column::TopLevel => format!("{}\t", column.value(of)),
        _ => column.value(of),
    });
    parts.collect::<Vec<_>>().join("\t")
}
