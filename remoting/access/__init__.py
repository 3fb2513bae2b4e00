"""Who may do what: users, rules on resources, and what each request needs. SANS-IO.

This is access control of RocketMQ 5.3 and later (ACL 2.0). Four steps decide about a request:

1. ``users.py`` finds the user by access key and verifies the signature;
2. ``needs.py`` says which actions on which resources a request needs;
3. ``rules.py`` finds the rule of the user that decides about each of them;
4. ``control.py`` allows the request, or raises the refusal with Java's code and text.

``changes.py`` has the rules of requests that change users and rules. A server's door to all of this
is ``remoting/server/access_check.py``.
"""
