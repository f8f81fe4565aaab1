//! Examples at the end of the help of the main commands.

pub(super) const SERVE: &str = "\
Examples:
  changefeed serve --demo                      a living example, with a dashboard
  changefeed serve                             everything, on sqlite:changefeed.db
  changefeed --db postgres://app@db/shop serve --listen 0.0.0.0:8787
  changefeed serve --only sweep,deliver        no watches and no HTTP in this instance";

pub(super) const APPLY: &str = "\
Examples:
  changefeed init                              write a changefeed.toml to begin with
  changefeed apply --check                     show the plan; exit code 3 if there is something to do
  changefeed apply                             show the plan and do it
  changefeed apply --prune --yes               also drop what the file does not have
  changefeed apply --export > changefeed.toml  write down what the database has";

pub(super) const LISTEN: &str = "\
Examples:
  changefeed listen orders                     print inserts, updates and deletes as they are committed
  changefeed listen orders --forward http://localhost:3000/hooks
  changefeed listen orders --on update --when \"new.status = 'paid'\" --json";

pub(super) const ERASE: &str = "\
Examples:
  changefeed erase customers --key id=4        old and new rows, and the requests and answers of webhooks
  changefeed erase order_lines --key order_id=4 --key line=1 --yes";

pub(super) const RECOVER: &str = "\
Examples:
  changefeed recover                           after a backup was restored, before readers go on
  changefeed status                            shows the incarnation that pages carry
  changefeed feed read orders --after 2000000000000042 --incarnation 019b0c7e52f07d1f9a3c66b0e2d41c55";

pub(super) const WATCH: &str = "\
Examples:
  changefeed watch orders --name mail          print the changed rows of a table
  changefeed watch create mail --table orders --webhook https://shop.example/hooks/mail
  changefeed watch show mail                   its backlog, and what is parked
  changefeed watch retry mail                  try parked rows again";

pub(super) const SUBSCRIPTION_CREATE: &str = "\
Examples:
  changefeed subscription create log --feed orders --to 'file:/var/lib/lake/orders-{shard}.ndjson'
  changefeed subscription create hook --feed orders --to https://shop.example/hooks/orders --from now
  changefeed subscription create bus --feed orders --to nats://127.0.0.1:4222/shop.orders --format cloudevents
  changefeed subscription create lake --feed orders --to s3://bucket/orders --as ndjson.gz --batch 10000 --every 1m";

pub(super) const FEED_CREATE: &str = "\
Examples:
  changefeed feed create orders --from orders
  changefeed feed create orders --from orders --shards 4 --shard-by customer_id
  changefeed feed create paid --from orders --when \"status = 'paid'\" --columns id,total
  changefeed feed create outbox --rows outbox_message";

pub(super) const FEED_READ: &str = "\
Examples:
  changefeed feed read orders --shard 0 --after first --limit 1000 --json
  changefeed feed read orders --shard 0 --after 2000000000000017";

pub(super) const TRIGGER_CREATE: &str = "\
Examples:
  changefeed trigger create orders --table orders --webhook https://shop.example/hooks/orders
  changefeed trigger create paid --table orders --update status --when \"new.status = 'paid'\" \\
             --webhook https://shop.example/hooks/paid --secret-env SHOP_SECRET --retries 5";

pub(super) const EVENT_REDELIVER: &str = "\
Examples:
  changefeed event list --trigger paid --status dead_letter
  changefeed event redeliver --trigger paid --status dead_letter";
