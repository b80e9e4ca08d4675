//! Checks `rate_limits`: lists of actions, with Envoy's names. It refuses what Envoy refuses, and what Envoy supports
//! but Tidegate does not.

use super::Checker;
use crate::rules::actions::{
    Action, Actions, Field, HITS_MAX, HeaderMatcher, HitsAddend, Item, Metadata, MetadataSource, Test,
    TextTest, TextTestKind, Value,
};
use crate::rules::fields::Fields;
use crate::rules::keys::Section;
use crate::rules::quote::quote;
use tidegate_yaml::{NodeId, Place};

/// The kinds of actions: the key of each, and the section of its value.
const KINDS: [(&str, Section); 7] = [
    ("remote_address", Section::RemoteAddress),
    ("masked_remote_address", Section::MaskedRemoteAddress),
    ("request_headers", Section::RequestHeaders),
    ("query_parameters", Section::QueryParameters),
    ("generic_key", Section::GenericKey),
    ("header_value_match", Section::HeaderValueMatch),
    ("metadata", Section::Metadata),
];

/// Where metadata is.
const SOURCES: [(&str, MetadataSource); 2] =
    [("DYNAMIC", MetadataSource::Dynamic), ("ROUTE_ENTRY", MetadataSource::Route)];

/// The tests of a `string_match`.
const TEXT_TESTS: [(&str, TextTestKind); 4] = [
    ("exact", TextTestKind::Exact),
    ("prefix", TextTestKind::Prefix),
    ("suffix", TextTestKind::Suffix),
    ("contains", TextTestKind::Contains),
];

impl Checker<'_, '_> {
    /// The actions of a file, and where each descriptor of them stands.
    pub(super) fn actions(&mut self, fields: &Fields) -> (Actions, Vec<Place>) {
        self.normalize_path = self.flag_or(fields, "normalize_path", true);
        let descriptors = self.reader.list(fields, "rate_limits");
        let placed = |&item: &NodeId| Some((self.descriptor(item)?, self.reader.at(item)));
        let (descriptors, places) = descriptors.iter().filter_map(placed).unzip();
        (Actions(descriptors), places)
    }

    /// The fields that make one descriptor.
    fn descriptor(&mut self, item: NodeId) -> Option<Item> {
        let fields = self.reader.fields(&[item], Section::Actions)?;
        let actions = self.at_least_one(&fields, "actions");
        let actions = actions.iter().filter_map(|&item| self.action(item)).collect();
        let on_stream_done = self.reader.flag(&fields, "apply_on_stream_done");
        let hits = match &fields.all("hits_addend")[..] {
            [] => None,
            nodes => Some(self.hits_addend(nodes, on_stream_done)?),
        };
        Some(Item { actions, hits, on_stream_done })
    }

    fn hits_addend(&mut self, nodes: &[NodeId], on_stream_done: bool) -> Option<HitsAddend> {
        let fields = self.reader.fields(nodes, Section::HitsAddend)?;
        let (name, is_number) = self.only_one(&fields, &[("number", true), ("format", false)])?;
        if is_number {
            let (_, hits) = self.reader.number(&fields, name, 0..=HITS_MAX)?;
            return Some(HitsAddend::Number(hits.into()));
        }
        let (at, format) = self.required(&fields, name)?;
        let is_known = |field: &Field| {
            on_stream_done || !matches!(field, Field::ResponseHeader(_) | Field::ResponseTrailer(_))
        };
        let field = field_of_format(&format).filter(is_known);
        if field.is_none() {
            self.reader.error(at, || {
                let format = quote(&format);
                format!(
                    "`format` is {format} (expected %REQ(name)%, %DYNAMIC_METADATA(namespace:key)% or, with \
                     `apply_on_stream_done: true`, %RESP(name)% or %TRAILER(name)%)"
                )
            });
        }
        field.map(HitsAddend::Of)
    }

    fn action(&mut self, item: NodeId) -> Option<Action> {
        let fields = self.reader.fields(&[item], Section::Action)?;
        let (name, section) = self.only_one(&fields, &KINDS)?;
        let fields = self.reader.fields(&fields.all(name), section)?;
        let action = |key: &str, value| Action { key: key.into(), skip_if_absent: false, value };
        match section {
            Section::RemoteAddress => Some(action("remote_address", Value::RemoteAddress)),
            Section::MaskedRemoteAddress => {
                let v4_bits = self.bits(&fields, "v4_prefix_mask_len", 32);
                let v6_bits = self.bits(&fields, "v6_prefix_mask_len", 128);
                Some(action("masked_remote_address", Value::MaskedRemoteAddress { v4_bits, v6_bits }))
            }
            Section::GenericKey => {
                let value = self.required(&fields, "descriptor_value");
                let key = self.optional(&fields, "descriptor_key", "generic_key");
                Some(action(&key, Value::Constant(value?.1.into())))
            }
            Section::HeaderValueMatch => self.header_value_match(&fields),
            Section::Metadata => self.metadata_value(&fields),
            _ => self.of_the_request(&fields, section),
        }
    }

    /// `request_headers` and `query_parameters`.
    fn of_the_request(&mut self, fields: &Fields, section: Section) -> Option<Action> {
        let value = if section == Section::RequestHeaders {
            self.field(fields, "header_name").map(Value::RequestHeader)
        } else {
            let name = self.required(fields, "query_parameter_name");
            name.map(|(_, name)| Value::QueryParameter(name.into()))
        };
        let key = self.required(fields, "descriptor_key");
        let skip_if_absent = self.reader.flag(fields, "skip_if_absent");
        Some(Action { key: key?.1.into(), skip_if_absent, value: value? })
    }

    fn metadata_value(&mut self, fields: &Fields) -> Option<Action> {
        let key = self.required(fields, "descriptor_key");
        let source =
            self.reader.word(fields, "source", &SOURCES).map_or_else(Default::default, |(_, source)| source);
        let default = self.optional(fields, "default_value", "").into();
        let skip_if_absent = self.reader.flag(fields, "skip_if_absent");
        let field = Field::Metadata(self.metadata_key(fields, source)?);
        Some(Action { key: key?.1.into(), skip_if_absent, value: Value::Metadata { field, default } })
    }

    /// The place of a value in metadata. Envoy shows modules no values nested in others.
    fn metadata_key(&mut self, fields: &Fields, source: MetadataSource) -> Option<Metadata> {
        let nodes = fields.all("metadata_key");
        if nodes.is_empty() {
            self.reader
                .error(fields.at, || "`metadata_key` is missing (expected `key` and `path`)".to_owned());
            return None;
        }
        let fields = self.reader.fields(&nodes, Section::MetadataKey)?;
        let namespace = self.required(&fields, "key");
        let path = self.at_least_one(&fields, "path");
        if let Some(&second) = path.get(1) {
            let at = self.reader.at(second);
            self.reader
                .error(at, || "`path` has a second item (expected one: a key of the namespace)".to_owned());
            return None;
        }
        let segment = self.reader.fields(path.get(..1)?, Section::MetadataSegment)?;
        let key = self.required(&segment, "key");
        Some(Metadata { source, namespace: namespace?.1.into(), key: key?.1.into() })
    }

    fn header_value_match(&mut self, fields: &Fields) -> Option<Action> {
        let value = self.required(fields, "descriptor_value");
        let key = self.optional(fields, "descriptor_key", "header_match");
        let expected = self.flag_or(fields, "expect_match", true);
        let matchers = self.at_least_one(fields, "headers");
        let matchers = matchers.iter().filter_map(|&item| self.header_matcher(item)).collect();
        let value = Value::HeaderValueMatch { value: value?.1.into(), expected, matchers };
        Some(Action { key: key.into(), skip_if_absent: false, value })
    }

    fn header_matcher(&mut self, item: NodeId) -> Option<HeaderMatcher> {
        let fields = self.reader.fields(&[item], Section::HeaderMatcher)?;
        let field = self.field(&fields, "name");
        let inverted = self.reader.flag(&fields, "invert_match");
        let present = self.flag_or(&fields, "present_match", true);
        let test = match fields.last("string_match") {
            None => Some(Test::Present(present)),
            Some(_) if fields.last("present_match").is_some() => {
                self.reader.error(fields.at, || {
                    "both `string_match` and `present_match` (expected one of the two)".to_owned()
                });
                None
            }
            Some(node) => {
                let test = self.text_test(node);
                self.warn_of_spelling(node, field.as_ref(), test.as_ref());
                test.map(Test::Text)
            }
        };
        Some(HeaderMatcher { field: field?, test: test?, inverted })
    }

    fn text_test(&mut self, node: NodeId) -> Option<TextTest> {
        let fields = self.reader.fields(&[node], Section::StringMatch)?;
        let ignore_case = self.reader.flag(&fields, "ignore_case");
        let (name, kind) = self.only_one(&fields, &TEXT_TESTS)?;
        let text = self.required(&fields, name)?.1.into();
        Some(TextTest { kind, text, ignore_case })
    }

    /// Warns of a test that no path passes, because its text is not in the normal form.
    fn warn_of_spelling(&mut self, node: NodeId, field: Option<&Field>, test: Option<&TextTest>) {
        let Some(test) = test.filter(|test| !test.can_match_a_normal_path()) else { return };
        if field == Some(&Field::Path) {
            let at = self.reader.at(node);
            self.reader.warning(at, || {
                format!(
                    "no `:path` in its normal form has {} (expected the normal form, or `normalize_path: false` beside \
                     `rate_limits`)",
                    quote(&test.text)
                )
            });
        }
    }

    /// The one field of several that is given.
    fn only_one<T: Copy>(
        &mut self,
        fields: &Fields,
        names: &[(&'static str, T)],
    ) -> Option<(&'static str, T)> {
        let mut given = names.iter().copied().filter(|(name, _)| fields.last(name).is_some());
        if let (Some(only), None) = (given.next(), given.next()) {
            return Some(only);
        }
        let names: Vec<&str> = names.iter().map(|&(name, _)| name).collect();
        self.reader.error(fields.at, || {
            format!("none or several keys stand here (expected exactly one of {})", names.join(", "))
        });
        None
    }

    /// The items of a list that must not be empty.
    fn at_least_one(&mut self, fields: &Fields, name: &str) -> Vec<NodeId> {
        let node = fields.last(name);
        if node.is_none_or(|node| self.reader.is_empty_list(node)) {
            let at = node.map_or(fields.at, |node| self.reader.at(node));
            self.reader.error(at, || format!("`{name}` is missing or empty (expected a list)"));
        }
        self.reader.list(fields, name).to_vec()
    }

    /// A header's name, or a name for a part of the request line.
    fn field(&mut self, fields: &Fields, name: &str) -> Option<Field> {
        let (at, text) = self.required(fields, name)?;
        let field = match Field::from_name(&text) {
            Some(Field::Path) if !self.normalize_path => Some(Field::RawPath),
            field => field,
        };
        if field.is_none() {
            self.reader.error(at, || {
                let text = quote(&text);
                format!("`{name}` is {text} (expected a header's name, `:path`, `:method` or `:authority`)")
            });
        }
        field
    }

    fn optional(&mut self, fields: &Fields, name: &str, default: &str) -> String {
        self.reader.text(fields, name).map_or(default, |(_, text)| text).to_owned()
    }

    fn flag_or(&mut self, fields: &Fields, name: &str, default: bool) -> bool {
        if self.reader.is_given(fields, name) { self.reader.flag(fields, name) } else { default }
    }

    /// The length of an address's prefix; the whole address by default.
    fn bits(&mut self, fields: &Fields, name: &str, all: u8) -> u8 {
        let bits = self.reader.number(fields, name, 0..=u32::from(all));
        bits.and_then(|(_, bits)| u8::try_from(bits).ok()).unwrap_or(all)
    }
}

/// The source of a format's number, with the names of Envoy's access logs: `%RESP(x-cost)%`.
fn field_of_format(format: &str) -> Option<Field> {
    let (command, argument) = format.strip_prefix('%')?.strip_suffix(")%")?.split_once('(')?;
    if command == "DYNAMIC_METADATA" {
        let (namespace, key) = argument.split_once(':')?;
        let is_plain = !namespace.is_empty() && !key.is_empty() && !key.contains(':');
        let source = MetadataSource::Dynamic;
        let metadata = Metadata { source, namespace: namespace.into(), key: key.into() };
        return is_plain.then_some(Field::Metadata(metadata));
    }
    let Field::Header(name) = Field::from_name(argument)? else { return None };
    match command {
        "REQ" => Some(Field::Header(name)),
        "RESP" => Some(Field::ResponseHeader(name)),
        "TRAILER" => Some(Field::ResponseTrailer(name)),
        _ => None,
    }
}
