//! The table of `qgroup show`, as btrfs-progs prints it.

use std::cmp::Ordering;

use buttress_control::order::Group;
use buttress_words::units::Units;
use serde::Serialize;

use super::Show;

/// A field to sort by.
#[derive(Clone, Copy, Debug)]
enum Field {
    Id,
    Referenced,
    Exclusive,
    MaxReferenced,
    MaxExclusive,
    Path,
}

/// A field, and whether large values come first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order(Field, bool);

/// Reads a word of `--sort`.
pub(super) fn order(text: &str) -> Result<Order, String> {
    let name = text.trim_start_matches(['+', '-']);
    let field = match name {
        "qgroupid" => Field::Id,
        "rfer" => Field::Referenced,
        "excl" => Field::Exclusive,
        "max_rfer" => Field::MaxReferenced,
        "max_excl" => Field::MaxExclusive,
        "path" => Field::Path,
        _ => return Err("one of qgroupid, rfer, excl, max_rfer, max_excl, path".to_owned()),
    };
    Ok(Order(field, text.starts_with('-')))
}

/// Sorts groups. Groups that compare as equal stay in the order of their numbers.
pub(super) fn sort(groups: &mut [Group], orders: &[Order]) {
    let limit = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    // Groups without a path come last, as in btrfs-progs.
    let by_path = |group: &Group| (group.path.is_none(), group.path.clone());
    let compare = |one: &Group, two: &Group, Order(field, is_reverse): Order| {
        let order = match field {
            Field::Id => number(&one.qgroupid).cmp(&number(&two.qgroupid)),
            Field::Referenced => one.referenced.cmp(&two.referenced),
            Field::Exclusive => one.exclusive.cmp(&two.exclusive),
            Field::MaxReferenced => limit(one.max_referenced).cmp(&limit(two.max_referenced)),
            Field::MaxExclusive => limit(one.max_exclusive).cmp(&limit(two.max_exclusive)),
            Field::Path => by_path(one).cmp(&by_path(two)),
        };
        if is_reverse { order.reverse() } else { order }
    };
    groups.sort_by(|one, two| {
        let each = orders.iter().map(|order| compare(one, two, *order));
        each.fold(Ordering::Equal, Ordering::then)
    });
}

fn number(id: &str) -> (u64, u64) {
    let (level, number) = id.split_once('/').unwrap_or(("0", id));
    (level.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

/// A column: its head, its least width, whether its cells stand at the right, and the cells.
struct Column {
    head: &'static str,
    width: usize,
    is_right: bool,
    cells: Vec<String>,
}

/// A group as btrfs-progs print it in JSON: numbers are texts, and a limit that is not set is the
/// text `none`.
#[derive(Serialize)]
pub(super) struct Row<'g> {
    qgroupid: &'g str,
    referenced: String,
    max_referenced: String,
    exclusive: String,
    max_exclusive: String,
    path: &'g str,
    parents: &'g [String],
    children: &'g [String],
}

impl<'g> From<&'g Group> for Row<'g> {
    fn from(group: &'g Group) -> Self {
        let limit = |limit: Option<u64>| limit.map_or_else(|| "none".into(), |at| at.to_string());
        Self {
            qgroupid: &group.qgroupid,
            referenced: group.referenced.to_string(),
            max_referenced: limit(group.max_referenced),
            exclusive: group.exclusive.to_string(),
            max_exclusive: limit(group.max_exclusive),
            path: group.path.as_deref().unwrap_or_default(),
            parents: &group.parents,
            children: &group.children,
        }
    }
}

/// The lines of the table. The widths and the blank behind the head are those of btrfs-progs.
pub(super) fn lines(args: &Show, groups: &[Group]) -> Vec<String> {
    let units = Units::from(args.units);
    let bytes = |bytes: u64| units.show(bytes);
    let limit = |limit: Option<u64>| limit.map_or_else(|| "none".to_owned(), bytes);
    let list = |groups: &[String]| match groups.is_empty() {
        true => "-".to_owned(),
        false => groups.join(","),
    };
    let column = |head: &'static str, least: usize, is_right, cell: &dyn Fn(&Group) -> String| {
        let cells: Vec<String> = groups.iter().map(cell).collect();
        let widest = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        Column { head, width: widest.max(least), is_right, cells }
    };
    let mut columns = vec![
        column("Qgroupid", 9, false, &|group| group.qgroupid.clone()),
        column("Referenced", 12, true, &|group| bytes(group.referenced)),
        column("Exclusive", 12, true, &|group| bytes(group.exclusive)),
    ];
    if args.max_referenced {
        columns.push(column("Max referenced", 15, true, &|group| limit(group.max_referenced)));
    }
    if args.max_exclusive {
        columns.push(column("Max exclusive", 14, true, &|group| limit(group.max_exclusive)));
    }
    if args.parents {
        columns.push(column("Parent", 8, false, &|group| list(&group.parents)));
    }
    if args.children {
        columns.push(column("Child", 5, false, &|group| list(&group.children)));
    }
    let row = |cell: &dyn Fn(&Column) -> String, path: &str| {
        let cells = columns.iter().map(|column| {
            let (cell, width) = (cell(column), column.width);
            if column.is_right { format!("{cell:>width$} ") } else { format!("{cell:<width$} ") }
        });
        format!("{}  {path}", cells.collect::<String>())
    };
    let mut lines = vec![
        row(&|column| column.head.to_owned(), "Path "),
        row(&|column| "-".repeat(column.head.len()), "---- "),
    ];
    for (at, group) in groups.iter().enumerate() {
        lines.push(row(&|column| column.cells[at].clone(), &path(group)));
    }
    lines
}

fn path(group: &Group) -> String {
    match (&group.path, number(&group.qgroupid)) {
        (Some(path), _) if path.is_empty() => "<toplevel>".to_owned(),
        (Some(path), _) => path.clone(),
        (None, (0, _)) => "<stale>".to_owned(),
        (None, _) => {
            let count = group.children.len();
            format!("<{count} member qgroup{}>", if count == 1 { "" } else { "s" })
        }
    }
}
