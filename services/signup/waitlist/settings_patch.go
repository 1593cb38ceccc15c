package waitlist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	markdowntext "github.com/yuin/goldmark/text"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/libs/netguard"
	"waitlist.internal/libs/seal"
)

// Bounds of the settings. Lengths are in code points.
const (
	maxHeadline    = 100
	maxSubheadline = 200
	maxConsentText = 500
	maxRedirectURL = 500
	maxButtonText  = 40
	maxURL         = 2000
	maxDomains     = 100
	maxEvents      = 10
	maxBoost       = 100
	maxOffset      = 1_000_000
	maxMilestones  = 10
	maxMilestone   = 10_000
)

// setting describes one setting.
type setting struct {
	name string
	// tier is the lowest tier that may change the setting.
	tier access.Tier
	// secret settings are stored sealed, and masked for viewers.
	secret bool
	// read returns the value of name in o, in the type that Settings has for it. The
	// value is present and not null. read reports an invalid value to o.
	read func(o *body.Object, name string) any
}

// settingsTable lists all settings in the order of the API. assignable reports
// whether a mail may use a template.
func settingsTable(assignable func(Assignment) bool) []setting {
	const pro, advanced = access.Pro, access.Advanced
	channel := link(netguard.Options{MaxLength: maxURL})
	return []setting{
		{name: "headline", read: text(maxHeadline)},
		{name: "subheadline", read: text(maxSubheadline)},
		{name: "hero_image_url", read: link(netguard.Options{MaxLength: maxURL, AllowHTTP: true, AnyHost: true})},
		{name: "name_field", read: oneOf(FieldOptional, FieldRequired, FieldHidden)},
		{name: "phone_field", read: oneOf(FieldHidden, FieldOptional, FieldRequired)},
		{name: "custom_questions", read: questions},
		{name: "redirect_url", tier: advanced, read: link(netguard.Options{MaxLength: maxRedirectURL, AnyHost: true})},
		{name: "hide_branding", tier: advanced, read: boolean},
		{name: "hide_position", tier: advanced, read: boolean},
		{name: "exclude_personal_emails", tier: advanced, read: boolean},
		{name: "allowed_email_domains", tier: advanced, read: domains},
		{name: "webhook_url", tier: pro, secret: true, read: channel},
		{name: "webhook_events", tier: pro, read: events},
		{name: "slack_webhook_url", tier: pro, secret: true, read: channel},
		{name: "discord_webhook_url", tier: pro, secret: true, read: channel},
		{name: "status", read: oneOf(Open, Closed)},
		{name: "show_social_proof", read: boolean},
		{name: "require_consent", read: boolean},
		{name: "consent_text", read: consentText},
		{name: "referral_boost", read: integer(1, maxBoost)},
		{name: "position_offset", tier: advanced, read: integer(0, maxOffset)},
		{name: "notify_referrer", tier: pro, read: boolean},
		{name: "sms_notify_referrer", tier: pro, read: boolean},
		{name: "require_email_verification", tier: pro, read: boolean},
		{name: "referral_milestones", tier: pro, read: milestones},
		{name: "email_templates", tier: pro, read: emailTemplates(assignable)},
		{name: "referral_guard", read: oneOf(GuardOff, GuardFlag, GuardWithhold)},
		{name: "credit_after_verification", read: boolean},
		{name: "appearance", read: appearance},
	}
}

// Merge applies patch, the settings object of a request, to the settings of
// waitlist id and returns the stored form of the result. null resets a setting to
// its default. A value that changes nothing passes at every tier. patch collects
// invalid values. gated is TIER_REQUIRED if a change needs a higher tier; the
// caller returns it once patch has no errors. assignable reports whether a template
// that s does not have may be assigned.
func (s Settings) Merge(
	patch *body.Object, id string, tier access.Tier, secrets *seal.Ring, assignable func(Assignment) bool,
) (merged []byte, gated, err error) {
	values, err := s.values()
	if err != nil {
		return nil, nil, err
	}
	defaults, err := DefaultSettings().values()
	if err != nil {
		return nil, nil, err
	}
	table := settingsTable(func(a Assignment) bool { return s.EmailTemplates.Has(a) || assignable(a) })
	for _, row := range table {
		if !patch.Has(row.name) {
			continue
		}
		if patch.IsNull(row.name) {
			values[row.name] = defaults[row.name]
			continue
		}
		value, err := json.Marshal(row.read(patch, row.name))
		if err != nil {
			return nil, nil, fmt.Errorf("encode %s: %w", row.name, err)
		}
		if patch.Failed(row.name) {
			continue
		}
		old := values[row.name]
		if row.secret {
			// A value that no key opens any more differs from every new one.
			if plain, err := openValue(old, id, row.name, secrets); err == nil {
				old = plain
			}
		}
		if bytes.Equal(old, value) {
			continue
		}
		if gated == nil {
			gated = access.RequireTier(access.Entitlement{Tier: tier}, row.tier, "The setting "+row.name)
		}
		if row.secret && !bytes.Equal(value, defaults[row.name]) {
			if value, err = sealValue(value, id, row.name, secrets); err != nil {
				return nil, nil, err
			}
		}
		values[row.name] = value
	}
	failUnknown(patch, table)
	merged, err = stored(values, defaults)
	return merged, gated, err
}

// Stored returns the form that DecodeSettings reads: the settings that differ from
// their defaults. Equal settings have equal forms.
func (s Settings) Stored() ([]byte, error) {
	values, err := s.values()
	if err != nil {
		return nil, err
	}
	defaults, err := DefaultSettings().values()
	if err != nil {
		return nil, err
	}
	return stored(values, defaults)
}

func stored(values, defaults map[string]json.RawMessage) ([]byte, error) {
	maps.DeleteFunc(values, func(name string, value json.RawMessage) bool { return bytes.Equal(value, defaults[name]) })
	out, err := json.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("encode settings: %w", err)
	}
	return out, nil
}

// JSONFor returns the settings object of waitlist id for a reader with role:
// every setting of Settings' JSON form, with the channel URLs in the clear or, for
// viewers, masked.
func (s Settings) JSONFor(id string, role access.Role, secrets *seal.Ring) ([]byte, error) {
	for _, c := range []struct {
		name string
		url  *string
	}{
		{"webhook_url", &s.WebhookURL},
		{"slack_webhook_url", &s.SlackWebhookURL},
		{"discord_webhook_url", &s.DiscordWebhookURL},
	} {
		plain, err := OpenChannel(*c.url, id, c.name, secrets)
		if err != nil {
			return nil, err
		}
		if role < access.Admin {
			plain = mask(plain)
		}
		*c.url = plain
	}
	out, err := marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode settings: %w", err)
	}
	return out, nil
}

// OpenChannel opens the sealed URL of a channel of waitlist id; "" stays "". name
// is the name of the setting.
func OpenChannel(sealed, id, name string, secrets *seal.Ring) (string, error) {
	if sealed == "" {
		return "", nil
	}
	plain, err := secrets.Open(sealed, secretPlace(id, name))
	if err != nil {
		return "", fmt.Errorf("open %s of waitlist %s: %w", name, id, err)
	}
	return string(plain), nil
}

// Reseal returns the stored settings of waitlist id with each secret under the first key
// of a ring, and how many secrets were under another one. renew is the ring's Renew.
func Reseal(settings []byte, id string, renew func(sealed, aad string) (string, error)) (renewed []byte, n int, err error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(settings, &values); err != nil {
		return nil, 0, fmt.Errorf("decode settings: %w", err)
	}
	for _, row := range settingsTable(nil) {
		if values[row.name] == nil || !row.secret {
			continue
		}
		var former string
		if err := json.Unmarshal(values[row.name], &former); err != nil {
			return nil, 0, fmt.Errorf("decode %s: %w", row.name, err)
		}
		sealed, err := renew(former, secretPlace(id, row.name))
		if err != nil {
			return nil, 0, fmt.Errorf("open %s: %w", row.name, err)
		}
		if sealed == former {
			continue
		}
		if values[row.name], err = json.Marshal(sealed); err != nil {
			return nil, 0, fmt.Errorf("encode %s: %w", row.name, err)
		}
		n++
	}
	if n == 0 {
		return settings, 0, nil
	}
	renewed, err = json.Marshal(values)
	return renewed, n, err
}

// secretPlace binds a sealed value to its place. A copy does not open elsewhere.
func secretPlace(id, name string) string { return "waitlist/" + id + "/" + name }

// sealValue turns a JSON string into the JSON string of its sealed form.
func sealValue(value []byte, id, name string, secrets *seal.Ring) ([]byte, error) {
	var plain string
	if err := json.Unmarshal(value, &plain); err != nil {
		return nil, fmt.Errorf("seal %s: %w", name, err)
	}
	return json.Marshal(secrets.Seal([]byte(plain), secretPlace(id, name)))
}

// openValue is the reverse of sealValue.
func openValue(value []byte, id, name string, secrets *seal.Ring) ([]byte, error) {
	var sealed string
	if err := json.Unmarshal(value, &sealed); err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	plain, err := OpenChannel(sealed, id, name, secrets)
	if err != nil {
		return nil, err
	}
	return json.Marshal(plain)
}

// mask hides the secret part of a URL and keeps the scheme and host, which tell
// the channels apart.
func mask(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return ""
	}
	return scheme + "://" + rest[:strings.IndexAny(rest+"/", "/?#")] + "/…"
}

// values returns s as one JSON value per setting.
func (s Settings) values() (map[string]json.RawMessage, error) {
	all, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode settings: %w", err)
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(all, &values); err != nil {
		return nil, fmt.Errorf("decode settings: %w", err)
	}
	return values, nil
}

// failUnknown reports unknown settings, so that a typo is noticed.
func failUnknown(patch *body.Object, table []setting) {
	known := make([]string, 0, len(table))
	for _, s := range table {
		known = append(known, s.name)
	}
	failKeysBut(patch, known...)
}

// consentText reads a text whose Markdown links lead to web pages or mailboxes.
func consentText(o *body.Object, name string) any {
	s, _ := o.String(name, maxConsentText)
	// Where a renderer is simpler than CommonMark, java<TAB>script: is a link, and browsers
	// leave out the TAB.
	joined := strings.NewReplacer("\t", "", "\r", "", "\n", "").Replace(s)
	for _, target := range append(linkTargets(s), linkTargets(joined)...) {
		target = strings.ToLower(target)
		if !strings.HasPrefix(target, "https://") && !strings.HasPrefix(target, "http://") && !strings.HasPrefix(target, "mailto:") {
			o.Fail(name, "Links in this text must start with https://, http:// or mailto:.")
			break
		}
	}
	return s
}

// linkTargets returns where the links and pictures of a CommonMark text lead.
func linkTargets(markdown string) (out []string) {
	src := []byte(markdown)
	_ = ast.Walk(goldmark.DefaultParser().Parse(markdowntext.NewReader(src)), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			switch n := n.(type) {
			case *ast.Link:
				out = append(out, string(n.Destination))
			case *ast.Image:
				out = append(out, string(n.Destination))
			case *ast.AutoLink:
				url := string(n.URL(src))
				if n.AutoLinkType == ast.AutoLinkEmail {
					url = "mailto:" + url
				}
				out = append(out, url)
			}
		}
		return ast.WalkContinue, nil
	})
	return out
}

// domains reads email domains in their stored form, without repeats.
func domains(o *body.Object, name string) any {
	out := []string{}
	in, _ := o.Strings(name, maxDomains, emailaddr.MaxLength)
	for i, s := range in {
		domain, err := emailaddr.ParseDomain(strings.TrimSpace(s))
		if err != nil {
			o.Fail(element(name, i), "Enter a domain such as example.com.")
		}
		if !slices.Contains(out, domain) {
			out = append(out, domain)
		}
	}
	return out
}

// events reads the names of events, without repeats.
func events(o *body.Object, name string) any {
	known := []string{EventSignupCreated, EventReferralCredited}
	out := []string{}
	in, _ := o.Strings(name, maxEvents, 0)
	for i, s := range in {
		switch {
		case !slices.Contains(known, s):
			o.Fail(element(name, i), "Choose "+choices(known)+".")
		case !slices.Contains(out, s):
			out = append(out, s)
		}
	}
	return out
}

func milestones(o *body.Object, name string) any {
	out, _ := o.Ints(name, maxMilestones)
	for i, n := range out {
		if n < 1 || n > maxMilestone {
			o.Fail(element(name, i), fmt.Sprintf("This must be an integer from 1 to %d.", maxMilestone))
		}
	}
	if out == nil {
		out = []int64{}
	}
	return out
}

// emailTemplates reads the template ids of the mails; "" means no template.
func emailTemplates(assignable func(Assignment) bool) func(*body.Object, string) any {
	return func(o *body.Object, name string) any {
		var out EmailTemplates
		in, ok := o.Object(name)
		if !ok {
			return out
		}
		mails := []string{}
		for _, f := range out.Fields() {
			mails = append(mails, f.Mail)
			given, _ := in.String(f.Mail, 0)
			if given == "" {
				continue
			}
			id, ok := ParseID(given)
			if !ok || !assignable(Assignment{f.Mail, id}) {
				in.Fail(f.Mail, "Choose a template of this type.")
			}
			*f.ID = id
		}
		failKeysBut(in, mails...)
		return out
	}
}

var accentPattern = regexp.MustCompile(`^#[0-9a-f]{6}$`)

// appearance reads how the form looks. It replaces the whole object.
func appearance(o *body.Object, name string) any {
	var out Appearance
	in, ok := o.Object(name)
	if !ok {
		return out
	}
	accent, _ := in.String("accent", 0)
	out.Accent = strings.ToLower(accent)
	if out.Accent != "" && !accentPattern.MatchString(out.Accent) {
		in.Fail("accent", "Enter a colour such as #3730a3.")
	}
	out.LogoURL, _ = link(netguard.Options{MaxLength: maxURL, AnyHost: true})(in, "logo_url").(string)
	out.ButtonText, _ = in.String("button_text", maxButtonText)
	out.ButtonText = strings.TrimSpace(out.ButtonText)
	out.Locale, _ = in.String("locale", 0)
	if out.Locale != "" && out.Locale != "en" && out.Locale != "de" {
		in.Fail("locale", "Choose en or de.")
	}
	failKeysBut(in, "accent", "logo_url", "button_text", "locale")
	return out
}
