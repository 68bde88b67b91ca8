"""A relying party made of PyJWT: it knows an issuer, and judges tokens.

Each line of standard input is {"Token", "Audience"}. Each line of the answer is {"Claims"} or {"Refused": "why"}.
Discovery is done once. PyJWKClient caches the key set for three seconds. By itself it keeps one for five minutes, and
asks at most every 30 s for a key that it does not know.
"""

import json
import sys
import urllib.request

import jwt


def main(issuer):
    with urllib.request.urlopen(issuer + "/.well-known/openid-configuration") as answer:
        found = json.load(answer)
    if found["issuer"] != issuer:
        sys.exit(f"the document names the issuer {found['issuer']}")
    keys = jwt.PyJWKClient(found["jwks_uri"], lifespan=3)
    algorithms = found["id_token_signing_alg_values_supported"]
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            key = keys.get_signing_key_from_jwt(asked["Token"])
            wanted = ["iat", "nbf", "sub", "jti", "aud", "iss"]
            claims = jwt.decode(asked["Token"], key, algorithms=algorithms, audience=asked["Audience"],
                                issuer=issuer, options={"require": wanted})
            said = {"Claims": claims}
        except jwt.PyJWTError as why:
            said = {"Refused": f"{type(why).__name__}: {why}"}
        print(json.dumps(said), flush=True)


main(sys.argv[1])
