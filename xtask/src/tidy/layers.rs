//! The order of the layers: the members of the workspace, the table of `ARCHITECTURE.md`, and what
//! each crate uses.
//!
//! # What must hold
//!
//! - The workspace lists its crates in the order of the table.
//! - A crate uses only crates that stand before it. Dependencies of its tests are free.

/// Places at which the list of members differs from the table: both names.
pub(super) fn wrong_order(workspace: &str, document: &str) -> Vec<String> {
    let (members, rows) = (members(workspace), rows(document));
    let at = |list: &[&str], index: usize| list.get(index).map_or("nothing", |it| it).to_owned();
    (0..members.len().max(rows.len()))
        .map(|index| (at(&members, index), at(&rows, index)))
        .filter(|(member, row)| member != row)
        .map(|(member, row)| format!("the workspace has {member} where the table has {row}"))
        .collect()
}

/// Crates that a crate uses although they do not stand before it in the list of members.
pub(super) fn used_too_early(workspace: &str, name: &str, manifest: &str) -> Vec<String> {
    let members = members(workspace);
    let before = members.iter().position(|member| *member == name).unwrap_or(members.len());
    dependencies(manifest)
        .filter(|used| !members[..before].contains(used))
        .map(|used| format!("{name} uses {used}, which does not stand before it"))
        .collect()
}

/// The crates of a workspace, by their folders.
fn members(workspace: &str) -> Vec<&str> {
    let lines = workspace.lines().filter_map(|line| line.trim().strip_prefix("\"crates/"));
    lines.filter_map(|line| line.split('"').next()).collect()
}

/// The crates in the table of layers.
fn rows(document: &str) -> Vec<&str> {
    let layers = document.lines().skip_while(|line| *line != "## Layers").skip(1);
    let layers = layers.take_while(|line| !line.starts_with("## "));
    layers.filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

/// The crates of the workspace that the product code of a crate uses.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let lines = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    lines
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.strip_prefix("buttress-"))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str =
        "members = [\n    \"crates/base\",\n    \"crates/tree\",\n    \"xtask\",\n]";

    #[test]
    fn a_member_in_another_place_than_in_the_table_is_found() {
        let table = |rows: &str| format!("## Layers\n\n| crate | |\n|---|---|\n{rows}\n## More\n");
        let right = table("| `base` | b | `a.rs` |\n| `tree` | t | |");
        assert!(wrong_order(WORKSPACE, &right).is_empty());
        let other = table("| `tree` | t | |\n| `base` | b | |");
        assert_eq!(wrong_order(WORKSPACE, &other).len(), 2);
        let more = table("| `base` | b | |\n| `tree` | t | |\n| `space` | s | |");
        let found = wrong_order(WORKSPACE, &more);
        assert_eq!(found, ["the workspace has nothing where the table has space"]);
    }

    #[test]
    fn a_crate_that_uses_a_later_one_is_found() {
        let uses = |name: &str| {
            format!(
                "[dependencies]\nbuttress-{name}.workspace = true\n[dev-dependencies]\nbuttress-x = 1\n"
            )
        };
        assert!(used_too_early(WORKSPACE, "tree", &uses("base")).is_empty());
        let found = used_too_early(WORKSPACE, "base", &uses("tree"));
        assert_eq!(found, ["base uses tree, which does not stand before it"]);
        let with = "[dependencies]\nbuttress-tree = { workspace = true }\n";
        assert_eq!(used_too_early(WORKSPACE, "base", with).len(), 1);
    }
}
