//! Lines of `subvolume list`.

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
