//! The compiled rule set, and the plan of a request under it: which limit applies to each descriptor, and which
//! counter holds it. Planning allocates nothing for the usual request, and costs the same for any number of rules.

use std::sync::Arc;

use foldhash::quality::FixedState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::cost::{Cost, CostUse};
use crate::held_costs::HeldCosts;
use crate::key::{Key, KeySecret};
use crate::limit::{Algorithm, Found, HoldTerms, Limit};
use crate::plan::{Candidate, Check, Hits, Modes, Origin, Plan, Step, of_steps};
use crate::prefix::Addresses;
use crate::request::{Descriptor, DescriptorOptions, Entry, Override, Request};
use crate::rules::actions::Actions;
use crate::rules::selectors::{Selector, asked};
use crate::rules::tree::{NodeId, Tree};
use crate::rules::{BadCallId, calls, hash, reservations};
use crate::rules::{LoadOptions, Rule};
use crate::unit::Window;

/// Separates the counters of overrides from those of rules.
const OVERRIDE_TAG: &[u8] = b"override";

/// The longest window of an override: 500 years. No counter lives that long.
const OVERRIDE_WINDOW_MAX_NANOS: u64 = 500 * 365 * 86_400 * 1_000_000_000;

/// A compiled rule set. Never changed: a reload makes a new one.
#[derive(Clone, Debug)]
pub struct RuleSet {
    pub(super) default_algorithm: Algorithm,
    /// What the costs of descriptors with their own limit mean.
    pub(super) cost_of_overrides: CostUse,
    pub(super) rules: Vec<Rule>,
    /// Some rule replaces another, has a candidate or a further limit, counts calls, or some counter was reset by itself.
    pub(super) has_more: bool,
    /// Counters that were reset by themselves, by their old keys: each with a rule that has other keys.
    pub(super) after_resets: HashMap<Key, Arc<RuleAfterReset>, FixedState>,
    /// The keys of some rule may have records.
    pub(super) has_records: bool,
    /// Some rule counts calls in flight.
    pub(super) counts_calls: bool,
    /// Domains have selectors.
    pub(super) selects: bool,
    pub(super) tree: Tree,
    pub(super) domains: HashMap<Arc<str>, Domain, FixedState>,
    pub(super) secret: KeySecret,
    pub(super) example: Option<Example>,
    pub(super) hash: Arc<str>,
}

/// The replacement for the rule of a counter that was reset by itself: it has other keys.
#[derive(Clone, Debug)]
pub(super) struct RuleAfterReset {
    pub(super) rule: Rule,
    /// The numbers of the last resets of all paths that lead to the counter.
    pub(super) epochs: Vec<u64>,
}

/// The contents of all files of one domain.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    /// The root of its nodes.
    pub(super) root: NodeId,
    pub(super) actions: Actions,
    /// Which requests meet which of its limits, if these are Limitador's.
    pub(super) selectors: Vec<Selector>,
}

/// An example request for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The domain.
    pub domain: Arc<str>,
    /// The (key, value) entries of its only descriptor.
    pub entries: Vec<(String, String)>,
}

impl RuleSet {
    /// The set of no files: every domain is unknown.
    pub fn empty(options: &LoadOptions) -> Self {
        let Key(random) = options.secret.seed([b"tree".as_slice()]).key([]);
        let seed = random as u64;
        Self {
            default_algorithm: options.default_algorithm,
            cost_of_overrides: CostUse::new(options.default_cost),
            rules: Vec::new(),
            has_more: false,
            after_resets: HashMap::default(),
            has_records: false,
            counts_calls: false,
            selects: false,
            tree: Tree::new(seed),
            domains: HashMap::with_hasher(FixedState::with_seed(seed)),
            secret: options.secret,
            example: None,
            hash: hash::of_files(Vec::new(), options),
        }
    }

    /// All rules, in file order: the rule with the id i is at index i.
    #[inline]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The same without bans and holds: those that count hits or calls.
    pub fn limits(&self) -> impl Iterator<Item = &Rule> + Clone {
        self.rules.iter().filter(|rule| rule.is_limit())
    }

    /// How holds of this rule's limit end, if it has `reserve`.
    pub fn holds_of(&self, rule: &Rule) -> Option<HoldTerms> {
        self.rule(rule.id + rule.further)?.hold_terms()
    }

    /// The ban that denials by this rule begin, for people: its terms, and what `on` says.
    pub fn ban_text(&self, rule: &Rule) -> Option<String> {
        let ban = self.rule(rule.id + rule.further)?;
        let on =
            if ban.ban_on.is_empty() { String::new() } else { format!(", on {}", ban.ban_on.join(" and ")) };
        Some(format!("{}{on}", ban.ban_terms()?))
    }

    /// The rule with this id.
    #[inline]
    pub fn rule(&self, id: usize) -> Option<&Rule> {
        self.rules.get(id)
    }

    /// Whether the keys of any rule may have records (`limits_from: store`).
    #[inline]
    pub fn has_records(&self) -> bool {
        self.has_records
    }

    /// Whether any rule counts calls in flight.
    #[inline]
    pub fn counts_calls(&self) -> bool {
        self.counts_calls
    }

    /// Whether requests have to be replaced by those that [`asked`](Self::asked) returns.
    #[inline]
    pub fn selects(&self) -> bool {
        self.selects
    }

    /// The request to plan instead of this one. If its domain has limits of Limitador, it has a descriptor for each limit that
    /// the first descriptor of this one meets; else it is the same.
    pub fn asked<'s, 'r: 's>(&'s self, request: &Request<'r>) -> Request<'s> {
        let domain = self.domains.get(request.domain()).filter(|domain| !domain.selectors.is_empty());
        asked(domain.map(|domain| &*domain.selectors), request)
    }

    /// Checks the ids by which a request takes or releases slots. Its plan is that of these rules.
    /// Fails for the first that is none: the request has to be refused before anything is counted.
    pub fn check_calls(&self, request: &Request<'_>, plan: &Plan<'_>) -> Result<(), BadCallId> {
        if self.counts_calls { calls::check_ids(request, plan) } else { Ok(()) }
    }

    /// Whether the reservation of this request has to say what its call may cost at most.
    pub fn needs_amount(&self, request: &Request<'_>) -> bool {
        reservations::needs_amount(&self.plan(&self.asked(request), Modes::default()))
    }

    /// The names of the domains, in no particular order.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.keys().map(|domain| &**domain)
    }

    /// The `rate_limits` of a domain. `None`: the domain is unknown.
    pub fn actions(&self, domain: &str) -> Option<&Actions> {
        self.domains.get(domain).map(|domain| &domain.actions)
    }

    /// An example request for the first rule, if there is a rule.
    pub fn example(&self) -> Option<&Example> {
        self.example.as_ref()
    }

    /// A hash of the rules, the same on all nodes that have the same: 12 hexadecimal digits.
    pub fn hash(&self) -> &Arc<str> {
        &self.hash
    }

    /// Which limit applies to each descriptor of a request, and which counter holds it.
    #[inline]
    pub fn plan<'p>(&'p self, request: &Request<'_>, modes: Modes) -> Plan<'p> {
        let mut plan = Plan::empty(modes);
        self.plan_into(request, &mut plan);
        plan
    }

    /// Like [`plan`](Self::plan), but overwrites `plan` in place to avoid a large move. Its modes stay.
    pub fn plan_into<'p>(&'p self, request: &Request<'_>, plan: &mut Plan<'p>) {
        let root = self.domains.get(request.domain()).map(|domain| domain.root);
        let mut learns_costs = false;
        let step = |descriptor: Descriptor<'_, '_>| {
            root.map_or(Step::Unmatched, |root| self.step(root, request, &descriptor, &mut learns_costs))
        };
        plan.domain_known = root.is_some();
        plan.steps.clear();
        plan.steps.extend(request.descriptors().map(step));
        plan.learns_costs = learns_costs;
        plan.further.clear();
        plan.candidates.clear();
        if self.has_more || request.reservation().is_some() {
            self.plan_more(request, plan);
        }
    }

    #[inline(never)] // Few sets of rules have any of this: the way of all others stays short.
    fn plan_more<'p>(&'p self, request: &Request<'_>, plan: &mut Plan<'p>) {
        self.add_further(request, plan);
        drop_replaced(&mut plan.steps);
        reservations::keep_own(request, plan);
        if self.counts_calls {
            calls::take_once(plan);
        }
        if !self.after_resets.is_empty() {
            self.replace_reset(request, plan);
        }
        add_candidates(request, plan);
    }

    /// Gives the checks of counters that were reset by themselves the rules that replace theirs.
    fn replace_reset<'p>(&'p self, request: &Request<'_>, plan: &mut Plan<'p>) {
        for (step, descriptor) in plan.steps.iter_mut().zip(of_steps(request, &plan.further)) {
            let Step::Check(check) = step else { continue };
            if let Some(after) = self.after_resets.get(&check.key) {
                check.origin = Origin::of(&after.rule);
                check.key = after.rule.key(descriptor.entries);
            }
        }
    }

    /// Adds the further limits of all rules. They take the same hits in the same modes.
    fn add_further<'p>(&'p self, request: &Request<'_>, plan: &mut Plan<'p>) {
        for (index, descriptor) in request.descriptors().enumerate() {
            let Some(first) = plan.steps[index].rule().filter(|rule| rule.further > 0) else { continue };
            let addresses = first.addresses(descriptor.entries);
            if let (Step::Check(check), false) = (&mut plan.steps[index], first.is_plain) {
                check.key = first.key_by(descriptor.entries, addresses.as_ref());
            }
            let further = || self.further_by(first, addresses.as_ref());
            let has_slots = self.counts_calls && further().any(|rule| rule.call_id.is_some());
            let names_slot = has_slots && names_slot(first, &descriptor);
            for rule in further() {
                let Some(limit) = rule.limit.filter(|limit| !names_slot || is_slots(limit)) else { continue };
                let (mut hits, reported) = hits_of(request, &descriptor.options, &rule.cost);
                let reported = match &plan.steps[index] {
                    Step::Check(check) => check.reported,
                    _ => reported,
                };
                if limit.algorithm() == Algorithm::Ban {
                    // Reports and refunds go on during a ban, and in shadow mode nothing is denied, unless a record says so.
                    let may_deny = !rule.shadow_mode || rule.records.is_some();
                    let may_be_denied = matches!(hits, Hits::Take(_)) && !reported && may_deny;
                    if !may_be_denied || plan.modes.shadow {
                        continue;
                    }
                    hits = Hits::Take(0);
                }
                let key = rule.key_by(descriptor.entries, addresses.as_ref());
                let mut check = Check { reported, ..Check::of(rule, limit, key, hits) };
                if check.is_of_holds() {
                    let limited = match &mut plan.steps[index] {
                        Step::Check(limited) => Some(limited),
                        _ => None,
                    };
                    if let Some(bound) =
                        reservations::reserve(request, rule, descriptor.entries, limited, &mut check)
                    {
                        plan.steps.push(Step::Check(bound));
                        plan.further.push(index);
                    }
                } else if !rule.is_plain {
                    check = not_plain(check, rule, &descriptor);
                }
                plan.steps.push(Step::Check(check));
                plan.further.push(index);
            }
            if names_slot {
                plan.steps[index] = Step::Unmatched;
            }
        }
    }

    /// The further limits of a rule for these entries.
    pub(super) fn further<'p>(
        &'p self,
        rule: &Rule,
        entries: &[Entry<'_>],
    ) -> impl Iterator<Item = &'p Rule> {
        let addresses = rule.addresses(entries);
        self.further_by(rule, addresses.as_ref()).collect::<SmallVec<[_; 4]>>().into_iter()
    }

    /// The same for a descriptor with these addresses.
    fn further_by<'p, 'd>(
        &'p self,
        rule: &Rule,
        addresses: Option<&'d Addresses>,
    ) -> impl Iterator<Item = &'p Rule> + use<'p, 'd> {
        let after = self.rules.get(rule.id + 1..).and_then(|after| after.get(..rule.further));
        after.unwrap_or_default().iter().filter(move |rule| match (&rule.prefixes, addresses) {
            (Some(prefixes), Some(addresses)) => prefixes.count(addresses),
            _ => true,
        })
    }

    /// Learns from a request that was decided by this plan what own costs mean, for rules that do not say it.
    #[cold]
    pub fn observe_costs(&self, request: &Request<'_>, plan: &Plan<'_>) {
        for (step, descriptor) in plan.steps.iter().zip(request.descriptors()) {
            let Step::Check(Check { origin, hits: Hits::Take(_), .. }) = step else { continue };
            let cost = match origin {
                Origin::Rule { rule, .. } => &rule.cost,
                Origin::Override { .. } => &self.cost_of_overrides,
            };
            let own_cost = descriptor.options.has_own_cost();
            // A cost whose meaning the request gives says nothing about others.
            if !own_cost || descriptor.options.cost == Cost::Auto {
                cost.observe(own_cost);
            }
        }
    }

    /// Learns from a commit that was decided by this plan what calls cost, for rules that hold a percentile of it: given what was
    /// found for each descriptor, by index.
    pub fn observe_commit(
        &self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        found: impl Iterator<Item = (usize, Found)>,
    ) {
        let Some(reservation) = request.reservation().filter(|reservation| reservation.is_commit) else {
            return;
        };
        for (descriptor, found) in found {
            let rule = plan.hold_of(descriptor).and_then(|place| plan.steps[place].rule());
            let entries = request.descriptors().nth(descriptor).map(|descriptor| descriptor.entries);
            if let (Some(rule), Some(entries)) = (rule, entries)
                && let Some(costs) = &rule.held_costs
            {
                costs.learn(rule.learning_key(entries), reservation.hits, found);
            }
        }
    }

    /// Continues with what the rules in force have learnt about costs.
    pub fn keep_learnt(&mut self, before: &Self) {
        // A node has one name: its first rule, which learns for all of them, is the last one here.
        let name = |rule: &Rule| rule.learning.key([]);
        let holds = before.rules.iter().filter_map(|rule| Some((name(rule), rule.held_costs.as_ref()?)));
        let holds: HashMap<Key, &HeldCosts, FixedState> = holds.collect();
        let learning = before.rules.iter().rev().filter(|rule| rule.cost.said() == Cost::Auto);
        let learnt: HashMap<Key, &CostUse, FixedState> =
            learning.map(|rule| (name(rule), &rule.cost)).collect();
        for rule in &mut self.rules {
            let name = name(rule);
            if let Some(before) = learnt.get(&name) {
                rule.cost.go_on_from(before);
            }
            if let (Some(held), Some(before)) = (&mut rule.held_costs, holds.get(&name)) {
                held.go_on_from(before);
            }
        }
        self.cost_of_overrides.go_on_from(&before.cost_of_overrides);
    }

    fn step<'p>(
        &'p self,
        root: NodeId,
        request: &Request<'_>,
        descriptor: &Descriptor<'_, '_>,
        learns_costs: &mut bool,
    ) -> Step<'p> {
        let Descriptor { entries, options } = descriptor;
        if let Some(limit) = &options.limit {
            *learns_costs |= !self.cost_of_overrides.is_settled();
            let (hits, reported) = hits_of(request, options, &self.cost_of_overrides);
            return Step::Check(self.check_of_override(request.domain(), entries, limit, hits, reported));
        }
        let rule = self.tree.find(root, entries).and_then(|rule| self.rules.get(rule as usize));
        let Some(rule) = rule else { return Step::Unmatched };
        let Some(limit) = rule.limit else { return Step::Unlimited(rule) };
        *learns_costs |= !rule.cost.is_settled();
        let (hits, reported) = hits_of(request, options, &rule.cost);
        if !rule.is_plain {
            // With further limits, `add_further` reads the addresses once for all of them.
            let key = if rule.further > 0 { Key(0) } else { rule.key(entries) };
            let check = Check { reported, ..Check::of(rule, limit, key, hits) };
            return Step::Check(not_plain(check, rule, descriptor));
        }
        Step::Check(Check { reported, ..Check::of(rule, limit, rule.plain_key(entries), hits) })
    }

    fn check_of_override<'p>(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        limit: &Override,
        hits: Hits,
        reported: bool,
    ) -> Check<'p> {
        let &Override { requests_per_unit, window } = limit;
        let Window { unit, multiplier } = window;
        let multiplier = multiplier.to_le_bytes();
        let seed = self.secret.seed([OVERRIDE_TAG, domain.as_bytes(), unit.name().as_bytes(), &multiplier]);
        let window_nanos = window.nanos().min(OVERRIDE_WINDOW_MAX_NANOS);
        let key = seed.key(entries.iter().flat_map(|entry| [entry.key, entry.value]));
        Check {
            reported,
            ..Check::new(
                Origin::Override { window },
                Limit::new(self.default_algorithm, requests_per_unit.into(), window_nanos),
                key,
                hits,
            )
        }
    }
}

/// The check of a rule whose limit depends on more than its path.
#[cold]
fn not_plain<'p>(check: Check<'p>, rule: &'p Rule, descriptor: &Descriptor<'_, '_>) -> Check<'p> {
    let &Descriptor { entries, options } = descriptor;
    // Hits that are given back are those of any class.
    let class = rule.class_of(entries).filter(|_| matches!(check.hits, Hits::Take(_)));
    let limit = class.map_or(check.limit, |(_, share)| check.limit.with_share(share));
    let mut check = Check { limit: rule.limit_for(limit, entries), ..check };
    if is_slots(&limit) {
        check.about_slot(rule, rule.trailing(entries), options.renews);
    }
    check
}

fn is_slots(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::Concurrency
}

/// Whether a descriptor releases or renews the slot that it names: then it is about no other limit of its rule.
fn names_slot(rule: &Rule, descriptor: &Descriptor<'_, '_>) -> bool {
    let options = &descriptor.options;
    options.renews || options.is_negative_hits && rule.trailing(descriptor.entries).is_some()
}

/// The hits of a descriptor, and whether they are a reported cost.
#[inline]
fn hits_of(request: &Request<'_>, options: &DescriptorOptions, cost: &CostUse) -> (Hits, bool) {
    let hits = request.hits_of(options);
    let hits = if options.is_negative_hits { Hits::GiveBack(hits) } else { Hits::Take(hits) };
    (hits, options.has_own_cost() && is_reported(options, cost))
}

/// Whether an own cost is already spent: as the request says, or as the rule does.
#[inline]
fn is_reported(options: &DescriptorOptions, rule: &CostUse) -> bool {
    match options.cost {
        Cost::Auto => rule.is_reported(),
        Cost::Reported => true,
        Cost::Asked => false,
    }
}

/// Adds the candidates of all rules whose limits are checked. A candidate takes the same hits in the same modes.
fn add_candidates<'p>(request: &Request<'_>, plan: &mut Plan<'p>) {
    for ((index, step), descriptor) in plan.steps.iter().enumerate().zip(request.descriptors()) {
        let Step::Check(check @ Check { origin: Origin::Rule { rule, .. }, .. }) = step else { continue };
        if let Some((limit, key)) = rule.candidate(descriptor.entries) {
            let limit = limit.with_share(check.limit.share());
            plan.candidates.push(Candidate {
                step: index,
                rule: rule.id,
                check: Check { limit, key, ..*check },
            });
        }
    }
}

/// Drops each limit whose name another descriptor's rule replaces. A dropped limit still drops others, so a cycle
/// drops all that are in it. An unlimited one replaces, but is never dropped.
fn drop_replaced(steps: &mut [Step<'_>]) {
    if !steps.iter().filter_map(Step::rule).any(|rule| !rule.replaces.is_empty()) {
        return;
    }
    for index in 0..steps.len() {
        let Step::Check(Check { origin: Origin::Rule { rule, .. }, .. }) = steps[index] else { continue };
        let replaces = |other: &Rule| !rule.name.is_empty() && other.replaces.contains(&rule.name);
        if steps.iter().filter_map(Step::rule).any(replaces) {
            steps[index] = Step::Replaced(rule);
        }
    }
}
