import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs RocketMQ's own mqadmin, many commands in one JVM: a line of standard input is one command, its words separated by tabs.
 *  After the output of each command comes a line "===" so that the caller can tell them apart. */
public class Mqadmin {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            MQAdminStartup.main0(line.split("\t"), null);
            System.out.println("\n===");
            System.out.flush();
        }
        System.exit(0);
    }
}
