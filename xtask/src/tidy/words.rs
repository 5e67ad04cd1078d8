//! Forbidden words in identifiers: words that the glossary replaces, and words for persons.
//!
//! # What must hold
//!
//! - A name is checked at its declaration: a function, type, field, constant, module or variable.
//!   Uses of the name, and names that a trait prescribes, are not checked.
//! - A word is a part of a name, as `snake_case` and `CamelCase` divide it.

use std::path::Path;

use syn::visit::Visit;

use super::prose::{Finding, PERSONS};

/// Names of a file that have a forbidden word, by line.
pub(super) fn declared_with(text: &str, forbidden: &[String]) -> Vec<Finding> {
    // A file that cannot be parsed was reported when it was read.
    let Ok(parsed) = syn::parse_file(text) else { return Vec::new() };
    let mut names = Names::default();
    names.visit_file(&parsed);
    let is_wrong = |word: &String| {
        PERSONS.contains(&word.as_str()) || forbidden.iter().any(|other| other == word)
    };
    names.0.retain(|(_, name)| words(name).iter().any(is_wrong));
    names.0
}

/// The finding that the name of a file has a forbidden word.
pub(super) fn in_file_name(file: &Path, forbidden: &[String]) -> Option<Finding> {
    let stem = file.file_stem()?.to_str()?;
    let is_wrong = |word: &String| forbidden.contains(word);
    words(stem).iter().any(is_wrong).then(|| (1, stem.to_owned()))
}

/// Forbidden words in the parts of lines that `text_of` returns.
pub(super) fn in_lines<'t, T: AsRef<str>>(
    text: &'t str,
    text_of: impl Fn(&'t str) -> Option<T>,
    forbidden: &[String],
) -> Vec<Finding> {
    let lines = text.lines().enumerate();
    let found = lines.filter_map(|(index, line)| {
        let part = text_of(line.trim_start())?.as_ref().to_lowercase();
        let mut words = part.split(|c: char| !c.is_alphanumeric() && c != '_');
        let word = words.find(|word| forbidden.iter().any(|other| other == word))?;
        Some((index + 1, word.to_owned()))
    });
    found.collect()
}

/// The comment of a line of Rust, or its strings that are sentences: those with a space.
pub(super) fn spoken(line: &str) -> Option<String> {
    if line.starts_with("//") {
        return Some(line.to_owned());
    }
    let strings = line.split('"').skip(1).step_by(2).filter(|string| string.contains(' '));
    let spoken: Vec<_> = strings.collect();
    (!spoken.is_empty()).then(|| spoken.join(" "))
}

/// The parts of a name, in small letters.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() && was_small {
            words.push(String::new());
        }
        was_small = letter.is_lowercase() || letter.is_numeric();
        if letter != '_'
            && let Some(word) = words.last_mut()
        {
            word.extend(letter.to_lowercase());
        }
    }
    words
}

#[derive(Default)]
struct Names(Vec<Finding>);

impl Names {
    fn add(&mut self, name: &syn::Ident) {
        self.0.push((name.span().start().line, name.to_string()));
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig.ident);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        for part in &item.items {
            if item.trait_.is_none()
                && let syn::ImplItem::Fn(function) = part
            {
                self.add(&function.sig.ident);
            }
        }
        syn::visit::visit_item_impl(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.add(&item.sig.ident);
        syn::visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.add(&item.ident);
        syn::visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add(&item.ident);
        syn::visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.add(&item.ident);
        syn::visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.add(&item.ident);
        syn::visit::visit_item_type(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.add(&item.ident);
        syn::visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.add(&item.ident);
        syn::visit::visit_item_static(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.add(&item.ident);
        syn::visit::visit_item_mod(self, item);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.add(&variant.ident);
        syn::visit::visit_variant(self, variant);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.add(name);
        }
        syn::visit::visit_field(self, field);
    }

    /// Skips `Struct { field }`: it declares a variable that has the name of the field.
    fn visit_field_pat(&mut self, pattern: &'ast syn::FieldPat) {
        if pattern.colon_token.is_some() {
            syn::visit::visit_field_pat(self, pattern);
        }
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.add(&pattern.ident);
        syn::visit::visit_pat_ident(self, pattern);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let forbidden = ["gaggle".to_owned(), "vow".to_owned()];
        declared_with(text, &forbidden).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn rule_finds_words_in_every_kind_of_name() {
        let [first, second, third] = [PERSONS[0], PERSONS[1], PERSONS[5]];
        let constant = third.to_uppercase();
        let text = format!(
            "mod gaggle {{ struct GaggleLine {{ {first}: u8 }} enum A {{ Gaggle }}
            const {constant}: u8 = 0; }} trait T {{ fn vow_all(&self); }}
            impl X {{ fn of_gaggle({second}: u8) {{ let gaggle2 = 1; }} }}"
        );
        let all =
            ["gaggle", "GaggleLine", first, "Gaggle", &constant, "vow_all", "of_gaggle", second];
        assert_eq!(found(&text), all);
    }

    #[test]
    fn rule_passes_uses_and_names_of_traits() {
        let text = "impl T for X { fn vow(&self) { other.vow(); } }
            fn f(A { vow, .. }: A) { whole(vow); }";
        assert!(found(text).is_empty());
    }

    #[test]
    fn rule_finds_words_in_sentences_and_file_names() {
        let forbidden = ["gaggle".to_owned()];
        let text = "// A gaggle.\nf(\"the gaggle waits\");\nf(\"gaggle\");\n";
        let found = in_lines(text, spoken, &forbidden);
        assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 2]);
        assert!(in_file_name(Path::new("a/gaggle_pool.rs"), &forbidden).is_some());
        assert!(in_file_name(Path::new("gaggle/pool.rs"), &forbidden).is_none());
    }

    #[test]
    fn words_are_divided_at_capitals_and_lines() {
        assert_eq!(words("VowPolicy_a2"), ["vow", "policy", "a2"]);
        assert_eq!(words("NO_GAGGLE"), ["no", "gaggle"]);
    }
}
