import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.JSON;
import org.openapitools.client.api.AdminApi;
import org.openapitools.client.api.AuthApi;
import org.openapitools.client.api.PublicApi;
import org.openapitools.client.api.WaitlistsApi;
import org.openapitools.client.model.CreateWaitlistRequest;
import org.openapitools.client.model.CreatedSignup;
import org.openapitools.client.model.Error;
import org.openapitools.client.model.ImportSignupsRequest;
import org.openapitools.client.model.ImportSignupsRequestSignupsInner;
import org.openapitools.client.model.ListSignups200Response;
import org.openapitools.client.model.RegisterRequest;
import org.openapitools.client.model.SignupInput;

public class Main {
	static void check(boolean holds, Object what) {
		if (!holds) throw new AssertionError(what);
	}

	interface Call { void run() throws ApiException; }

	static Error refused(int status, Call call) {
		try {
			call.run();
		} catch (ApiException e) {
			check(e.getCode() == status, e);
			return JSON.getGson().fromJson(e.getResponseBody(), Error.class);
		}
		throw new AssertionError("no error");
	}

	public static void main(String[] args) throws Exception {
		ApiClient client = new ApiClient().setBasePath(System.getenv("WAITLIST_URL"));
		client.setApiKey(new AuthApi(client).register(new RegisterRequest().email("java@example.com")
			.password("correct horse battery")).getApiKey());
		WaitlistsApi waitlists = new WaitlistsApi(client);
		PublicApi open = new PublicApi(client);
		AdminApi admin = new AdminApi(client);

		String id = waitlists.createWaitlist(new CreateWaitlistRequest().name("Launch"), null, null).getWaitlistId();
		check(waitlists.listWaitlists().getWaitlists().size() == 1, "waitlists");
		check(open.getWaitlistConfig(id).getStatus().toString().equals("open"), "config");
		open.createSignup(id, new SignupInput().email("early@example.com"));
		CreatedSignup ann = open.createSignup(id, new SignupInput().email("ann@example.com"));
		check(ann.getPosition() == 2, ann);
		open.createSignup(id, new SignupInput().email("bob@example.com").referredByToken(ann.getReferralToken()));
		check(open.getSignupStatus(id, "ann@example.com").getPosition() == 1, "status");
		check(admin.importSignups(id, new ImportSignupsRequest().addSignupsItem(
			new ImportSignupsRequestSignupsInner().email("cem@example.com"))).getImported() == 1, "import");
		List<String> emails = new ArrayList<>();
		String lastKey = null;
		do {
			ListSignups200Response page = admin.listSignups(id, 1, lastKey);
			page.getSignups().forEach(s -> emails.add(s.getEmail()));
			lastKey = page.getLastKey();
		} while (lastKey != null);
		check(emails.equals(Arrays.asList("ann@example.com", "early@example.com", "bob@example.com", "cem@example.com")), emails);
		String csv = admin.exportSignups(id, null);
		check(csv.startsWith("email,first_name") && csv.split("\r\n").length == 5, csv);
		Error missing = refused(404, () -> open.getSignupStatus(id, "nobody@example.com"));
		check("NOT_FOUND".equals(missing.getErrorCode()) && missing.getRequestId() != null && missing.getError() != null, missing);
		Error invalid = refused(400, () -> open.createSignup(id, new SignupInput().email("nowhere")));
		check("email".equals(invalid.getErrors().get(0).getField()), invalid);
	}
}
