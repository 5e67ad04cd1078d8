//! `buttress qgroup`, and `btrfs qgroup`: groups of subvolumes, with their usage and their limits.

mod table;

use buttress_control::order::{Group, QuotaAct, quota_group};
use buttress_words::json;
use buttress_words::units::LongUnits;

use super::quota::{self, At};
use crate::exit::{Exit, Failure, Result};
use crate::image::Devices;
use crate::size;
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// List groups with their usage, limits and memberships.
    Show(Show),
    /// Limit the space that a group may use.
    Limit {
        /// Limit data after compression. This is always done.
        #[arg(short)]
        compressed: bool,
        /// Limit only the space that no other group uses.
        #[arg(short)]
        exclusive: bool,
        /// The limit, as in 4G or 512M. The value none removes the limit.
        size: String,
        /// The group, as in 1/100 or as the number of a subvolume, then the place. Without a group,
        /// the limit is set for the subvolume at the place.
        #[arg(value_name = "[GROUP] IMG:/PATH | PATH", num_args = 1..=2, required = true)]
        target: Vec<std::ffi::OsString>,
        #[command(flatten)]
        devices: Devices,
    },
    /// Create a group, given as in 1/100.
    Create {
        #[arg(value_parser = quota_group)]
        group: u64,
        #[command(flatten)]
        at: At,
    },
    /// Remove a group that has no members.
    Destroy {
        #[arg(value_parser = quota_group)]
        group: u64,
        #[command(flatten)]
        at: At,
    },
    /// Remove the groups of subvolumes that no longer exist.
    ClearStale {
        #[command(flatten)]
        at: At,
    },
    /// Make a group a member of a group of a higher level.
    Assign(Relation),
    /// End the membership of a group in another group.
    Remove(Relation),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Relation {
    /// Rescan if the counts become inconsistent. This is the default.
    #[arg(long, conflicts_with = "no_rescan")]
    rescan: bool,
    /// Do not rescan, even if the counts become inconsistent.
    #[arg(long)]
    no_rescan: bool,
    /// The member.
    #[arg(value_parser = quota_group)]
    child: u64,
    /// The parent group, which has a higher level.
    #[arg(value_parser = quota_group)]
    parent: u64,
    #[command(flatten)]
    at: At,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// Show the groups that each group is a member of.
    #[arg(short)]
    parents: bool,
    /// Show the members of each group.
    #[arg(short)]
    children: bool,
    /// Show limits of referenced bytes.
    #[arg(short = 'r')]
    max_referenced: bool,
    /// Show limits of exclusive bytes, which no other group uses.
    #[arg(short = 'e')]
    max_exclusive: bool,
    /// Show only the group of the place, and its direct and indirect parents.
    #[arg(short = 'F')]
    all_of_place: bool,
    /// Show only the group of the place.
    #[arg(short = 'f')]
    only_place: bool,
    #[command(flatten)]
    units: LongUnits,
    /// Print the JSON of btrfs-progs.
    #[arg(skip)]
    pub(crate) of_btrfs: bool,
    /// Commit before the groups are listed. This is always done.
    #[arg(long)]
    sync: bool,
    /// Sort by qgroupid, rfer, excl, max_rfer, max_excl or path. A - in front reverses the order.
    /// Several keys are separated by commas.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true, value_parser = table::order)]
    sort: Vec<table::Order>,
    #[command(flatten)]
    at: At,
}

pub(crate) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    let relate = |relation: &Relation, joins: bool| {
        let Relation { child, parent, no_rescan, at, .. } = relation;
        let (child, parent, rescan) = (*child, *parent, !no_rescan);
        let act = match joins {
            true => QuotaAct::Assign { child, parent, rescan },
            false => QuotaAct::Remove { child, parent, rescan },
        };
        match at.order(|_| act, ui)?.as_bool() {
            Some(true) => {
                let document = serde_json::json!({ "rescanned": true });
                quota::say(ui, &document, "Quota data changed, rescan scheduled")
            }
            _ if ui.json() => ui.document(&serde_json::json!({ "rescanned": false })),
            _ => Ok(()),
        }
    };
    match verb {
        Verb::Show(args) => show(&args, ui)?,
        Verb::Limit { exclusive, size, target, devices, .. } => {
            limit(exclusive, &size, target, devices, ui)?;
        }
        Verb::Create { group, at } => drop(at.order(|_| QuotaAct::Create { group }, ui)?),
        Verb::Destroy { group, at } => drop(at.order(|_| QuotaAct::Destroy { group }, ui)?),
        Verb::ClearStale { at } => drop(at.order(|_| QuotaAct::ClearStale, ui)?),
        Verb::Assign(relation) => relate(&relation, true)?,
        Verb::Remove(relation) => relate(&relation, false)?,
    }
    Ok(Exit::Success)
}

fn limit(
    exclusive: bool,
    size: &str,
    mut target: Vec<std::ffi::OsString>,
    devices: Devices,
    ui: &Ui,
) -> Result<()> {
    let usage = |what: String| Failure::new(Exit::Usage, what);
    let size = match size {
        "none" => None,
        size => Some(size::parse(size).map_err(usage)?),
    };
    let Some(place) = target.pop() else { return Err(usage("no place was given".to_owned())) };
    let group = match target.pop() {
        Some(text) => Some(quota_group(&text.to_string_lossy()).map_err(usage)?),
        None => None,
    };
    let at = At::of(place, devices);
    at.order(|named| QuotaAct::Limit { group, at: named.spot.clone(), size, exclusive }, ui)?;
    Ok(())
}

fn show(args: &Show, ui: &Ui) -> Result<()> {
    let found = args.at.show(|named| QuotaAct::ShowAt { at: named.spot.clone() }, ui)?;
    if !found.enabled {
        return Err(args.at.none());
    }
    if found.inconsistent {
        crate::ui::note("WARNING: qgroup data inconsistent, rescan recommended");
    }
    let mut groups = found.groups;
    if args.only_place || args.all_of_place {
        let own = format!("0/{}", found.subvolume.unwrap_or_default());
        let mut kept = vec![own];
        if args.all_of_place {
            add_ancestors(&groups, &mut kept);
        }
        groups.retain(|group| kept.contains(&group.qgroupid));
    }
    table::sort(&mut groups, &args.sort);
    if ui.json() && args.of_btrfs {
        return json::document(
            "qgroup-show",
            &groups.iter().map(table::Row::from).collect::<Vec<_>>(),
            ui,
        );
    }
    if ui.json() {
        return ui.document(&serde_json::json!({ "qgroup-show": groups }));
    }
    for line in table::lines(args, &groups) {
        ui.line(line)?;
    }
    Ok(())
}

/// Adds the groups of which the last group is a member, directly or through other groups.
fn add_ancestors(groups: &[Group], kept: &mut Vec<String>) {
    let mut at = 0;
    while let Some(id) = kept.get(at) {
        let parents = groups.iter().filter(|group| group.qgroupid == *id);
        let parents: Vec<_> = parents.flat_map(|group| group.parents.clone()).collect();
        for parent in parents {
            if !kept.contains(&parent) {
                kept.push(parent);
            }
        }
        at += 1;
    }
}
