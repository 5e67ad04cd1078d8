//! Items of trees, as Linux shows them to root.

use buttress_fs::{Generation, Key, Kind, Searched, TreeId};
use buttress_protocol::btrfs::{SearchKey, SearchPage};

use super::super::rights::Rights;
use super::super::{Caller, Door, Node, refuse};
use super::expect_admin;
use crate::errno::Answer;

impl Door {
    /// Shows items of a tree. Earlier changes by programs are committed first, since only a commit
    /// changes a tree.
    pub(super) fn search(
        &self,
        caller: Caller,
        node: &Node,
        key: SearchKey,
        argument: &[u8],
    ) -> Answer<Vec<u8>> {
        expect_admin(&Rights::of(caller))?;
        let tree = if key.tree == 0 { node.inode.id().tree } else { TreeId(key.tree) };
        let mut page = SearchPage::new(argument, &key)?;
        self.fs.commit_or_keep_last().map_err(refuse)?;
        let whole = |(object, kind, offset)| Key::new(object, Kind(kind), offset);
        let searched = Searched {
            tree,
            keys: (whole(key.from), whole(key.to)),
            generations: (Generation(key.generations.0), Generation(key.generations.1)),
        };
        let mut add = |item: buttress_fs::TreeItem<'_>| {
            let Key { objectid, kind, offset } = item.key;
            page.add((objectid, kind.0, offset), item.generation.0, item.bytes)
        };
        self.fs.search(searched, &mut add).map_err(refuse)?;
        Ok(page.into_bytes())
    }
}
